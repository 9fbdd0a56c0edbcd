"""File names are filled from wildcards, and read back into them."""

from pathlib import Path

import pytest

from espo_luigi.errors import ParameterError
from espo_luigi.fields import check_wildcard, match_path, render_path

TEMPLATE = "{tmpdir}/{sim_id}+{region}+regridded.zarr"
WILDCARDS = {"sim_id": "CMIP6_ScenarioMIP_CCCma_CanESM5_ssp585_r1i1p1f1_global", "region": "south_nodup"}


def test_a_path_gives_back_the_wildcards_that_made_it() -> None:
    path = render_path(TEMPLATE, WILDCARDS | {"tmpdir": "/scratch/run"})
    assert path == Path(f"/scratch/run/{WILDCARDS['sim_id']}+south_nodup+regridded.zarr")
    assert match_path(TEMPLATE, {"tmpdir": "/scratch/run"}, path) == WILDCARDS


def test_a_wildcard_that_stands_twice_has_one_value() -> None:
    template = "{final}/NAM_SPLIT/{region}/day+{sim_id}+{region}.zarr"
    assert match_path(template, {"final": "/f"}, Path("/f/NAM_SPLIT/south/day+a+south.zarr")) == {
        "region": "south",
        "sim_id": "a",
    }
    assert match_path(template, {"final": "/f"}, Path("/f/NAM_SPLIT/south/day+a+north.zarr")) is None


@pytest.mark.parametrize("path", ["/scratch/run/a+b+c+regridded.zarr", "/scratch/run/x/a+b+regridded.zarr", "/other"])
def test_another_tasks_path_does_not_match(path: str) -> None:
    assert match_path(TEMPLATE, {"tmpdir": "/scratch/run"}, Path(path)) is None


@pytest.mark.parametrize("value", ["a+b", "../up", "", "..", "a\nb", "a\x00"])
def test_a_value_that_cannot_be_part_of_a_file_name_is_refused(value: str) -> None:
    with pytest.raises(ParameterError, match=r"sim_id = .* cannot be part of a file name"):
        check_wildcard("sim_id", value)
