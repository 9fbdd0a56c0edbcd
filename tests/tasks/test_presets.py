"""A reference in an archive's layout, catalogued with `--as`, is checked and cut as the same data in CMIP's layout."""

from collections.abc import Callable
from pathlib import Path

import pytest
import xarray as xr
from archives import as_daymet, as_e_obs, as_gridmet, reference_in_celsius
from complete_demo import edit
from demo_runs import of_years

from espo_luigi import tasks
from espo_luigi.commands import cli
from espo_luigi.science.attributes import INSERTED_DAYS
from espo_luigi.tasks.context import context, forget

Configure = Callable[..., list[Path]]
YEARS = ("1991", "1992")


@pytest.fixture()
def plain(configured: Configure) -> tuple[xr.Dataset, Path]:
    """What `RefDefault` makes of the demo's own reference, and the configuration's file."""
    files = configured(**of_years(1991, 2000, 1991, 1992))
    return tasks.RefDefault(piece="north").compute([], None)["reference"].load(), files[0]


@pytest.mark.parametrize(
    ("preset", "source", "layout"),
    [("e-obs", "E-OBS", as_e_obs), ("gridmet", "gridMET", as_gridmet), ("daymet", "Daymet", as_daymet)],
)
def test_a_reference_of_an_archive_gives_the_values_of_the_same_data(
    preset: str,
    source: str,
    layout: Callable[[xr.Dataset, Path], None],
    plain: tuple[xr.Dataset, Path],
    demo_raw: Path,
    tmp_path: Path,
) -> None:
    expected, config = plain
    layout(reference_in_celsius(demo_raw, *YEARS), tmp_path / "archive")
    assert cli.main(["catalog", str(tmp_path / "archive"), "--out", str(tmp_path / "ref.json"), "--as", preset]) == 0

    def change(content: dict) -> None:  # type: ignore[type-arg]
        search = content["extraction"]["reference"]["search_data_catalogs"]
        search |= {"data_catalogs": [str(tmp_path / "ref.json")], "other_search_criteria": {"source": source}}
        content["extraction"]["ref_source"] = source

    edit(config, change)
    edit(config.with_name("paths.yml"), lambda content: content["extraction"].pop("reference"))
    forget()
    assert tasks.RefInputCheck().problems() == []
    made = tasks.RefDefault(piece="north").compute([], None)["reference"].load()
    last = expected["time"].dt.strftime("%Y-%m-%d") == "1992-12-31"
    for name in ("tasmax", "tasmin", "pr"):
        kept = {"rtol": 1e-5, "atol": 1e-10}
        if preset == "daymet":
            xr.testing.assert_allclose(made[name].where(~last), expected[name].where(~last), **kept)
            how = context().config.table[name].filling
            before = made[name].isel(time=-2, drop=True)
            filled = xr.zeros_like(before) if how == "zero" else before
            xr.testing.assert_equal(made[name].isel(time=-1, drop=True), filled)
        else:
            xr.testing.assert_allclose(made[name], expected[name], **kept)
    assert made.attrs.get(INSERTED_DAYS) == ("1992-12-31" if preset == "daymet" else None)


def test_a_catalogue_made_with_another_preset_makes_the_reference_stale(
    plain: tuple[xr.Dataset, Path], demo_raw: Path, tmp_path: Path
) -> None:
    from espo_luigi.catalog import Catalog, make_catalog
    from espo_luigi.catalog.presets import load_preset
    from espo_luigi.tasks.staleness import _of_files

    as_e_obs(reference_in_celsius(demo_raw, *YEARS), tmp_path / "archive")
    matches = []
    for preset in (load_preset("e-obs"), load_preset("e-obs").model_copy(update={"units": {"pr": "cm d-1"}})):
        make_catalog(tmp_path / "archive", tmp_path / "ref.json", preset=preset)
        (match,) = Catalog.from_files([tmp_path / "ref.json"]).search(variables_and_freqs={"pr": "D"}).values()
        matches.append(match)
    assert len({_of_files(match) for match in matches}) == 2
