"""What a project's classes of tasks define: refused by name where a job could not do it."""

import asyncio
import datetime
import functools
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import luigi
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from luigi.cmdline_parser import CmdlineParser
from luigi.configuration import get_config
from luigi.parameter import ParameterVisibility

from espo_luigi import Resources, SlurmTask
from espo_luigi.driver.task import RESOURCE_NAMES
from espo_luigi.driver.task_classes import check_dask, has_job
from espo_luigi.errors import SubmissionError
from espo_luigi.tasks.base import EspoTask


def named(base: type, **attributes: Any) -> Any:
    return type("Named", (base,), {"__module__": "mine", **attributes})


# Of Luigi's attributes, those that its documentation tells to set.
MAY_SET = {"priority", "resources", "retry_count", "disabled", "worker_timeout", "owner_email", "batchable"}
OF_SLURM_TASK = set(dir(SlurmTask)) - {name for name, _ in SlurmTask.get_params()}


@pytest.mark.parametrize("base", [SlurmTask, EspoTask])
@pytest.mark.parametrize("name", ["wildcards", "stale", "preload", "label", "task_id", "param_kwargs", "uses_dask"])
def test_a_parameter_with_the_name_of_an_attribute_is_refused_where_its_class_is_defined(base: type, name: str) -> None:
    with pytest.raises(SubmissionError, match=rf"^mine\.Named: the parameter {name} has the name of an attribute"):
        named(base, **{name: luigi.Parameter(default="x")})


def test_all_names_but_those_that_luigi_lets_a_task_set_are_refused_and_those_of_options_are_free() -> None:
    refused = set()
    for name in dir(SlurmTask):
        if name.startswith(("__", "_abc")) or name in RESOURCE_NAMES:
            continue
        try:
            named(SlurmTask, **{name: luigi.Parameter(default="x")})
        except SubmissionError:
            refused.add(name)
    let_through = {name for name in OF_SLURM_TASK - refused if not name.startswith(("__", "_abc"))}
    assert let_through > MAY_SET
    assert all(name in dir(luigi.Task) for name in let_through)
    assert refused > {name for name in vars(SlurmTask) if callable(vars(SlurmTask)[name]) and name[0] != "_"}
    assert not refused & {name for name, _ in SlurmTask.get_params()}


def test_a_parameter_of_a_base_that_means_something_else_by_the_name_of_a_resource_is_refused() -> None:
    class Hourly(luigi.Task):
        time = luigi.DateHourParameter()

    class Texts(luigi.Task):
        memory = luigi.Parameter()

    with pytest.raises(SubmissionError, match=r"time \(DateHourParameter of Hourly\)"):
        type("Mine", (Hourly, SlurmTask), {})
    with pytest.raises(SubmissionError, match=r"the parameter memory \(Parameter of Texts\)"):
        type("Mine", (Texts, SlurmTask), {})
    with pytest.raises(SubmissionError, match=r"the parameter time \(DateParameter of Named\)"):
        named(SlurmTask, time=luigi.DateParameter())


def test_heirs_keep_the_resources_that_their_base_gives_as_parameters() -> None:
    base = named(SlurmTask, time=luigi.Parameter(default="2:00:00", significant=False))
    heir, other = named(base), named(base, resources_default=Resources(time="1:00:00"))
    assert [kind().allocation.time_minutes for kind in (base, heir, other)] == [120, 120, 60]


_megabytes = luigi.NumericalParameter(default=4000, min_value=1, max_value=9000, var_type=int)


@pytest.mark.parametrize(
    "attributes",
    [
        {"resources_default": Resources(time=60, memory=4000)},
        {"time": luigi.IntParameter(default=60), "memory": _megabytes},
        {"time": luigi.Parameter(default="60"), "memory": luigi.ChoiceParameter(choices=["4000"], default="4000")},
    ],
)
def test_numbers_are_resources_of_heirs_as_well(attributes: dict[str, Any]) -> None:
    base = named(SlurmTask, **attributes)
    for kind in (base, named(base), named(named(base))):
        kind().check()
        assert (kind().allocation.time_minutes, kind().allocation.memory_bytes) == (60, 4000 * 2**20)
    assert named(named(SlurmTask, **attributes), resources_default=Resources(time="5"))().allocation.time_minutes == 5


def test_a_resource_of_a_base_that_is_no_task_counts_and_luigi_cfg_takes_every_notation() -> None:
    class Longer:
        time = luigi.Parameter(default="2:00:00")

    mine = type("Named", (Longer, SlurmTask), {"__module__": "mine"})
    assert mine().allocation.time_minutes == named(mine)().allocation.time_minutes == 120
    get_config().set("Named", "time", "3:00:00")
    assert named(SlurmTask, resources_default=Resources(time=60))().allocation.time_minutes == 180  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:Parameter")
def test_a_resource_may_be_given_to_a_task_as_a_number() -> None:
    task = named(SlurmTask)(time=90, memory=4000)
    task.check()
    assert task.allocation.as_text()["time"] == "90"


@pytest.mark.parametrize("value", ["4GB", property(lambda self: "4GB")])
def test_a_resource_that_is_no_parameter_is_refused_and_told_where_it_belongs(value: Any) -> None:
    with pytest.raises(SubmissionError, match=r"^mine\.Named: memory, .* write resources_default = Resources\(memory="):
        named(SlurmTask, memory=value)


def test_an_external_task_has_no_job_and_is_not_refused() -> None:
    raw = type("Raw", (luigi.ExternalTask, SlurmTask), {"__module__": "mine"})
    own = named(SlurmTask, work=lambda self: None, n=luigi.Parameter(default=None))
    get_config().set("espo", "engine", "slurm")
    for task in (raw(), luigi.task.externalize(own)(), luigi.task.externalize(own())):
        assert not has_job(task, SlurmTask)
        task.check()


def test_work_that_a_decorator_drains_is_a_job() -> None:
    async def later(self: luigi.Task) -> None:
        pass

    @functools.wraps(later)
    def work(self: luigi.Task) -> None:
        asyncio.run(later(self))

    named(SlurmTask, work=work)().check()


def test_a_private_parameter_may_come_from_luigi_cfg_and_not_from_the_command_line() -> None:
    place: Any = {"section": "archive", "name": "key"}
    key = luigi.Parameter(default="", visibility=ParameterVisibility.PRIVATE, config_path=place)
    task: Any = type("WithKey", (SlurmTask,), {"__module__": "mine", "key": key})
    get_config().set("archive", "key", "of-the-archive")
    with pytest.warns(DeprecationWarning, match="archive"):
        task().check()
    with CmdlineParser.global_instance(["WithKey", "--WithKey-key", "secret"]):
        typed = task()
        assert typed.key == "secret"
        with pytest.raises(SubmissionError, match=r"visibility=ParameterVisibility\.HIDDEN"):
            typed.check()


def _steps(self: luigi.Task) -> Iterator[luigi.Task]:
    yield SlurmTask()


async def _later(self: luigi.Task) -> None:
    pass


def test_work_that_yields_or_waits_is_refused_and_told_where_needs_belong() -> None:
    for work in (_steps, _later):
        with pytest.raises(SubmissionError, match=r"^Named: work is a generator "):
            named(SlurmTask, work=work)().check()


def test_run_in_place_of_work_is_refused_on_a_cluster_and_beside_work_it_is_not() -> None:
    def run(self: SlurmTask) -> None:
        super(type(self), self).run()

    in_driver, beside = (
        named(SlurmTask, run=run, n=luigi.Parameter(default=None)),
        named(SlurmTask, run=run, work=lambda self: None),
    )
    for task in (in_driver(), beside()):
        task.check()
    get_config().set("espo", "engine", "slurm")
    beside().check()
    with pytest.raises(SubmissionError, match=r"^Named overrides `run`.* `work`"):
        in_driver().check()


@pytest.mark.parametrize(
    ("parameter", "value", "said"),
    [
        (luigi.Parameter(), None, "is None (NoneType) here, and would be 'None' in its job"),
        (luigi.Parameter(), Path("/data/raw"), "would be '/data/raw' in its job. Values travel as text"),
        (luigi.Parameter(), 5, "is 5 (int) here, and would be '5' in its job. Values travel as text"),
        (luigi.IntParameter(), None, "is None (NoneType) here, and cannot be read back in its job (ValueError: "),
        (luigi.DateParameter(), None, "is None (NoneType) here, and cannot be read back in its job (ValueError: "),
        (luigi.BoolParameter(), "yes", "is None (NoneType) here (Luigi made None of the value that was given), and "),
        (luigi.TimeDeltaParameter(), datetime.timedelta(microseconds=5), "TimeDeltaParameter takes whole seconds"),
        (luigi.OptionalParameter(), "", "is '' (str) here, and would be None in its job"),
        (luigi.DictParameter(), {1: "surface"}, "would be {'1': 'surface'} in its job"),
        (
            luigi.Parameter(default="", visibility=ParameterVisibility.PRIVATE),
            "secret",
            "is private, and its job would",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Parameter")
def test_a_value_that_does_not_survive_as_text_is_refused_by_the_parameters_name(
    parameter: luigi.Parameter, value: Any, said: str
) -> None:
    task = named(SlurmTask, level=parameter)
    with pytest.raises(SubmissionError, match=r"^Named: the parameter level is ") as refused:
        task(level=value).check()
    assert said in str(refused.value) and "secret" not in str(refused.value)


_numbers = st.floats() | st.integers()
_nested = st.recursive(st.none() | st.booleans() | _numbers | st.text(), st.lists, max_leaves=5)
_KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (luigi.Parameter, st.text() | st.none()),
    (luigi.OptionalParameter, st.text() | st.none()),
    (luigi.IntParameter, st.integers() | st.floats()),
    (luigi.OptionalIntParameter, st.integers() | st.none()),
    (luigi.FloatParameter, _numbers),
    (luigi.BoolParameter, st.booleans()),
    (luigi.DateParameter, st.dates()),
    (luigi.DateMinuteParameter, st.datetimes(min_value=datetime.datetime(1000, 1, 1))),
    (luigi.TimeDeltaParameter, st.timedeltas(min_value=datetime.timedelta())),
    (luigi.ListParameter, st.lists(_nested)),
    (luigi.TupleParameter, st.lists(_nested).map(tuple)),
    (luigi.DictParameter, st.dictionaries(st.text() | st.integers(), _nested)),
    (luigi.PathParameter, st.sampled_from([Path("/data/é"), Path("."), "a b"])),
]


@pytest.mark.filterwarnings("ignore:Parameter", "ignore:.*OptionalP")
@pytest.mark.parametrize(("kind", "values"), _KINDS, ids=lambda one: getattr(one, "__name__", ""))
def test_any_value_is_the_same_in_the_job_or_refused(kind: Any, values: st.SearchStrategy[Any]) -> None:
    task = named(SlurmTask, value=kind())

    @settings(max_examples=20)
    @given(values)
    def is_the_same_or_refused(value: Any) -> None:
        try:
            of_driver = task(value=value)
            of_driver.check()
        except (SubmissionError, TypeError):
            return
        in_job = task.from_str_params(json.loads(json.dumps(of_driver.to_str_params())))
        assert repr(in_job.value) == repr(of_driver.value)

    is_the_same_or_refused()


def test_a_dask_session_without_dask_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "distributed" else name)
    with pytest.raises(SubmissionError, match=r"Mine: .* distributed is not installed here: run `pip install distribu"):
        check_dask("Mine")
