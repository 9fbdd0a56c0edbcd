"""Lines that are written for dask-jobqueue (`job_extra`, `resource_spec`), as each scheduler reads them."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pytest

from espo_luigi.errors import SizingError
from espo_luigi.jobs.dask import Directive, read_directive, read_resources
from espo_luigi.jobs.resources import GIB
from espo_luigi.jobs.schedulers.gridengine import SgeOptions
from espo_luigi.jobs.schedulers.slurm import SlurmOptions


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("--partition=long", {"partition": "long"}),
        ("--gres gpu:1", {"gres": "gpu:1"}),
        ("--exclusive", {"extra": {"mail-user": "me", "exclusive": ""}}),
        ("--comment='two words'", {"extra": {"mail-user": "me", "comment": "two words"}}),
        ("--exclude=n1", {"extra": {"mail-user": "me", "exclude": "n1"}}),
    ],
)
def test_a_line_of_a_header_is_read_as_sbatch_reads_it(line: str, options: dict[str, object]) -> None:
    assert read_directive("slurm", line, asdict(SlurmOptions(extra={"mail-user": "me"}))) == Directive(options)


@pytest.mark.parametrize("line", ["-p long", "", "partition=long", "--comment='two"])
def test_a_line_that_is_no_long_option_of_sbatch_is_refused(line: str) -> None:
    with pytest.raises(ValueError):
        read_directive("slurm", line, asdict(SlurmOptions()))


def asked_by_l(options: Mapping[str, Any] | None = None, **amounts: int) -> Directive:
    return Directive(options or {}, **amounts, per_slot=True)


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("-pe threaded 10", Directive({"parallel_environment": "threaded"}, cpus=10)),
        ("-l h_rt=3600", asked_by_l(time_minutes=60)),
        ("-l h_rt=3601", asked_by_l(time_minutes=61)),
        ("-l h_rt=1:30:00", asked_by_l(time_minutes=90)),
        ("-l h_vmem=4G", asked_by_l(memory_bytes=4 * GIB)),
        ("-l h_vmem=1.5G", asked_by_l(memory_bytes=GIB * 3 // 2)),
        ("-l h_vmem=4g", asked_by_l(memory_bytes=4 * 10**9)),
        ("-l h_vmem=1073741824", asked_by_l(memory_bytes=GIB)),
        (
            "-l 'h_vmem=4G,gpu=1, h_rt=60,ssd'",
            asked_by_l({"extra": {"l": "gpu=1,ssd"}}, memory_bytes=4 * GIB, time_minutes=1),
        ),
        ("-cwd", Directive()),
        ("-V", Directive()),
        ("-j y", Directive()),
        ("-q long.q", Directive({"queue": "long.q"})),
        ("-P climate", Directive({"project": "climate"})),
        ("-M me@example.org", Directive({"extra": {"M": "me@example.org"}})),
    ],
)
def test_a_line_of_a_header_is_read_as_grid_engine_reads_it(line: str, asked: Directive) -> None:
    assert read_directive("sge", line, asdict(SgeOptions())) == asked


def test_what_is_asked_for_by_l_joins_what_the_options_ask_for() -> None:
    options = asdict(SgeOptions(extra={"l": "gpu=1", "M": "me"}, memory_resource="mem_free", memory_per="job"))
    assert read_resources("sge", "h_vmem=4G,mem_free=2G", options) == Directive(
        {"extra": {"l": "gpu=1,h_vmem=4G", "M": "me"}}, memory_bytes=2 * GIB
    )


@pytest.mark.parametrize("line", ["pe threaded 10", "", "-l h_vmem=64GB", "-l h_vmem=", "-l h_rt=", "-N 'x"])
def test_a_line_that_grid_engine_would_not_take_is_refused(line: str) -> None:
    with pytest.raises((ValueError, SizingError)):
        read_directive("sge", line, asdict(SgeOptions()))
