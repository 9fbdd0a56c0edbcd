"""Amounts in Slurm's notations, and contradictory requests."""

import pytest
from dask.utils import parse_bytes

from espo_luigi.errors import SizingError
from espo_luigi.jobs.resources import (
    GIB,
    Resources,
    headroom,
    parse_memory,
    parse_size,
    parse_time,
    render_memory,
)

MIB = 2**20


# As in the --mem option of Slurm's sbatch manual: MiB without a suffix; K, M, G and T are powers of 1024.
@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        (4000, 4000 * MIB),
        ("4000", 4000 * MIB),
        ("512K", 512 * 1024),
        ("3500M", 3500 * MIB),
        ("60G", 60 * GIB),
        ("60GB", 60 * GIB),
        ("60GiB", 60 * GIB),
        ("60 gb", 60 * GIB),
        ("1.5G", 1536 * MIB),
        ("2T", 2048 * GIB),
    ],
)
def test_memory_is_read_as_slurm_reads_it(text: str | int, n_bytes: int) -> None:
    assert parse_memory(text) == n_bytes


@pytest.mark.parametrize("text", ["", "much", "60X", "-4G", "0", "0G", "4G 4G", "1,5G"])
def test_what_is_no_amount_of_memory_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(SizingError, match="is not an amount of memory; expected for example 60GB") as caught:
        parse_memory(text)
    assert repr(text) in str(caught.value)


# The formats of the --time option in Slurm's sbatch manual; Slurm too rounds seconds up to the next minute.
@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        (90, 90),
        ("90", 90),
        ("90:00", 90),
        ("90:01", 91),
        ("1:30:00", 90),
        ("01:30:30", 91),
        ("2-12", 3600),
        ("2-12:30", 3630),
        ("2-12:30:00", 3630),
        ("0-00:00:01", 1),
        (" 15 ", 15),
    ],
)
def test_time_is_read_as_slurm_reads_it(text: str | int, minutes: int) -> None:
    assert parse_time(text) == minutes


@pytest.mark.parametrize("text", ["", "soon", "1:2:3:4", "1h", "-5", "1-", "1.5", "1::2"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(SizingError, match="is not a duration; expected minutes"):
        parse_time(text)


@pytest.mark.parametrize("text", ["0", "0:00", "0:00:00", "0-0"])
def test_no_time_at_all_is_refused(text: str) -> None:
    with pytest.raises(SizingError, match="no time at all; expected at least 1"):
        parse_time(text)


def test_memory_is_written_in_whole_mib_and_read_back() -> None:
    assert render_memory(60 * GIB) == "61440M"
    assert render_memory(MIB + 1) == "1M"
    assert parse_memory(render_memory(3500 * MIB)) == 3500 * MIB


def test_a_tenth_is_kept_free_and_two_gib_at_most() -> None:
    assert headroom(10 * GIB) == GIB
    assert headroom(20 * GIB) == 2 * GIB
    assert headroom(500 * GIB) == 2 * GIB


def test_workers_share_equally_what_the_headroom_leaves() -> None:
    request = Resources(4, 8, "42GB")
    assert request.worker_memory_bytes == 10 * GIB
    assert request.threads_per_worker == 2


def test_the_least_memory_with_which_a_worker_has_256_mib_is_enough_and_no_less() -> None:
    refused = []
    for mib in (283, 284, 285, 286):
        try:
            Resources(1, 1, f"{mib}M", "2-12").check("Extract")
        except SizingError:
            refused.append(mib)
    assert refused == [283, 284]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Resources(0, 4), "Extract: n_workers = 0; expected at least 1"),
        (Resources(1, 0), "Extract: cpus_per_task = 0; expected at least 1"),
        (Resources(3, 10), "cpus_per_task = 10 cannot be shared equally by n_workers = 3; .*: 9 or 12"),
        (Resources(4, 2), "cpus_per_task = 2 cannot be shared equally by n_workers = 4; .* can: 4$"),
        (Resources(4, 4, "1GB"), "memory = 1GB leaves 230 MiB for each of 4 Dask workers; .*raise memory or lower"),
        (Resources(1, 1, "a lot"), "'a lot' is not an amount"),
        (Resources(1, 1, "4GB", "a while"), "'a while' is not a duration"),
    ],
)
def test_a_contradiction_is_named_with_the_rule_and_the_way_out(request_: Resources, message: str) -> None:
    with pytest.raises(SizingError, match=message):
        request_.check("Extract")


def test_a_request_is_cut_to_the_machine_and_still_shared_equally() -> None:
    assert Resources(3, 12, "60GB", "2:00:00").fitted(8, 16 * GIB) == Resources(3, 6, 16 * GIB, "2:00:00")
    assert Resources(8, 8, "4GB").fitted(2, 16 * GIB) == Resources(2, 2, 4 * GIB)
    assert Resources(1, 1, "60GB").fitted(8, 16 * GIB) == Resources(1, 1, 16 * GIB)


@pytest.mark.parametrize("text", ["20TB", "500 GB", "1.5TiB", "5kB", "1e6", "123", "20 tb", "3MiB", "7G", "2PB", "9 B"])
def test_a_size_on_a_disk_is_as_many_bytes_as_for_dask(text: str) -> None:
    assert parse_size(text) == parse_bytes(text)


@pytest.mark.parametrize("text", ["lots", "5 apples", "-1GB", "", "GB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(SizingError, match="is not a size; expected for example 20TB"):
        parse_size(text)
