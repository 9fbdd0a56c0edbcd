"""CMIP7 in catalogues: variables by meaning, versions and grids, history by parents, attributes, calendars."""

from __future__ import annotations

import csv
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from test_catalog_search import rows_of as rows_of_cmip6
from test_catalog_search import search as search_rows

from espo_luigi import config
from espo_luigi.catalog import Catalog, Match, make_catalog, open_fixed, open_match
from espo_luigi.catalog.build import describe
from espo_luigi.catalog.cmip7 import VARIABLES
from espo_luigi.catalog.examine import examine_match
from espo_luigi.catalog.read import COLUMNS
from espo_luigi.errors import CatalogError, DataError
from espo_luigi.fields import match_path, render_path

CONFIG = Path(__file__).parents[2] / "config"
HELD = {"tasmax": ("tas", "tmax-h2m-hxy-u"), "tasmin": ("tas", "tmin-h2m-hxy-u"), "pr": ("pr", "tavg-u-hxy-u")}
METHODS = {searched: methods for searched, methods in VARIABLES.values()}
WANTED = {"tasmax": "D", "tasmin": "D", "pr": "D", "dtr": "D"}
RUN = {
    "mip_era": "CMIP7",
    "activity_id": "ScenarioMIP",
    "institution_id": "MOHC",
    "source_id": "UKCM2-0-LL",
    "experiment_id": "scen7-h",
    "variant_label": "r1i1p1f1",
    "region": "glb",
    "frequency": "day",
    "grid_label": "g110",
}
HISTORY = {"activity_id": "CMIP", "experiment_id": "historical", "parent_experiment_id": "no parent"}


def parent(experiment: str = "historical", **other: str) -> dict[str, str]:
    """The attributes that name a parent of the same source and variant, but for `other`."""
    named = {"mip_era": "CMIP7", "source_id": "UKCM2-0-LL", "variant_label": "r1i1p1f1"} | other
    named["activity_id"] = "CMIP" if experiment.endswith(("historical", "hist", "piControl")) else "ScenarioMIP"
    return {f"parent_{name}": value for name, value in named.items()} | {"parent_experiment_id": experiment}


def path_of(folder: Path, attrs: dict[str, str], held: str, suffix: str, years: str, version: str) -> Path:
    """A file's place as CMIP7 has it."""
    run = ("activity_id", "institution_id", "source_id", "experiment_id", "variant_label", "region")
    place = Path(folder, "MIP-DRS7", "CMIP7", *(attrs[name] for name in run), "day", held, suffix, attrs["grid_label"])
    names = ("region", "grid_label", "source_id", "experiment_id", "variant_label")
    region, *others = (attrs[name] for name in names)
    return place / version / f"{held}_{suffix}_day_{region}_{'_'.join(others)}_{years}.nc"


def store(
    folder: Path,
    variable: str,
    years: tuple[int, int],
    *,
    name: str = "",
    attributes: bool = True,
    version: str = "v20260901",
    methods: str | None = None,
    held: tuple[str, str] | None = None,
    value: float = 280.0,
    calendar: str = "noleap",
    **changed: str,
) -> Path:
    """Write one file of CMIP7 below `folder`: in its place, or under a `name`, with its attributes or without."""
    in_file, suffix = held or HELD[variable]
    attrs = RUN | {"variable_id": in_file, "branding_suffix": suffix, "branded_variable": f"{in_file}_{suffix}"}
    attrs |= {"tracking_id": f"hdl:21.14107/{variable}-{years[0]}", "product": "model-output"} | changed
    attrs = {key: text for key, text in attrs.items() if text}
    time = xr.date_range(
        f"{years[0]}-01-01 12:00", f"{years[1]}-12-31 12:00", freq="D", calendar=calendar, use_cftime=True
    )
    data = np.full((time.size, 2, 2), value, "float32")
    about = {"units": "kg m-2 s-1" if variable == "pr" else "K", "cell_measures": "area: areacella"}
    about["cell_methods"] = METHODS.get(variable, "area: mean") if methods is None else methods
    ds = xr.Dataset(
        {in_file: (("time", "lat", "lon"), data, about)}, {"time": time, "lat": [40.0, 50.0], "lon": [0.0, 9.0]}
    )
    dates = f"{years[0]}0101-{years[1]}1231"
    path = folder / name if name else path_of(folder, RUN | attrs, in_file, suffix, dates, version)
    path.parent.mkdir(parents=True, exist_ok=True)
    ds.assign_attrs(attrs if attributes else {}).to_netcdf(
        path, encoding={"time": {"units": "days since 1850-01-01", "dtype": "float64"}, in_file: {"_FillValue": 1e20}}
    )
    return path


def run(folder: Path, years: tuple[int, int], **changed: Any) -> None:
    """Write the three variables of a run."""
    for variable in HELD:
        store(folder, variable, years, **changed)


def search(folder: Path, period: tuple[str, str] | None = None, **kwargs: Any) -> dict[str, Match]:
    make_catalog(folder, folder / "cat.json")
    arguments = {"variables_and_freqs": WANTED, "periods": period, "match_hist_and_fut": period is not None} | kwargs
    return Catalog.from_files([folder / "cat.json"]).search(**arguments)


def only(found: dict[str, Match]) -> Match:
    (match,) = found.values()
    return match


def warned(caplog: pytest.LogCaptureFixture) -> str:
    return " | ".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)


# Variables by meaning


@pytest.mark.parametrize(("held", "suffix"), VARIABLES, ids=["_".join(key) for key in VARIABLES])
@pytest.mark.parametrize("way", ["named", "attributes alone", "name alone"])
def test_a_file_holds_the_variable_that_its_suffix_and_cell_methods_mean(
    tmp_path: Path, held: str, suffix: str, way: str
) -> None:
    searched, methods = VARIABLES[held, suffix]
    name = "a.nc" if way == "attributes alone" else ""
    path = store(
        tmp_path,
        searched,
        (2050, 2050),
        held=(held, suffix),
        methods=methods,
        name=name,
        attributes=way != "name alone",
    )
    row = describe(path)
    assert (row["variable"], row["branding_suffix"]) == (repr((searched,)), suffix)
    assert row["id"] == "CMIP7_ScenarioMIP_MOHC_UKCM2-0-LL_scen7-h_r1i1p1f1_global"
    assert (row["grid_label"], row["region"], row["frequency"]) == ("g110", "glb", "day")
    assert row.get("version", "") == ("" if name else "v20260901")


def test_a_name_with_one_date_is_read_and_goes_before_its_folders(tmp_path: Path) -> None:
    path = store(tmp_path, "pr", (2022, 2022), attributes=False)
    other = path.with_name(path.name.replace("r1i1p1f1", "r8i1p1f1").replace("20220101-20221231", "202201"))
    path.rename(other)
    assert describe(other)["member"] == "r8i1p1f1"


@pytest.mark.parametrize(
    ("held", "suffix", "methods"),
    [
        ("tas", "tmax-h2m-hxy-crp", "area: mean where crops time: maximum"),
        ("tas", "tmin-h2m-hxy-crp", "area: mean where crops time: minimum"),
        ("hurs", "tmin-h2m-hxy-crp", "area: mean where crops time: minimum"),
        ("pr", "tavg-u-hxy-crp", "area: time: mean where crops"),
        ("pr", "tmax-u-hxy-u", "area: mean time: mean within hours time: maximum over hours"),
        ("tas", "tpt-h2m-hxy-u", "area: mean time: point"),
    ],
)
@pytest.mark.parametrize("attributes", [True, False])
def test_a_look_alike_is_searched_by_its_branded_name_alone(
    tmp_path: Path, held: str, suffix: str, methods: str, attributes: bool
) -> None:
    path = store(tmp_path, held, (2050, 2050), held=(held, suffix), methods=methods, attributes=attributes)
    assert describe(path)["variable"] == repr((f"{held}_{suffix}",))


@pytest.mark.parametrize("period", [None, ("2050", "2050")])
def test_look_alikes_beside_the_plain_variables_are_not_opened_with_them(
    tmp_path: Path, period: tuple[str, str] | None
) -> None:
    run(tmp_path, (2050, 2050))
    for held, suffix in (("pr", "tmax-u-hxy-u"), ("tas", "tmax-h2m-hxy-crp"), ("tas", "tavg-h2m-hxy-u")):
        methods = METHODS["tas"] if suffix.startswith("tavg") else "area: mean where crops time: maximum"
        store(tmp_path, held, (2050, 2050), held=(held, suffix), methods=methods)
    match = only(search(tmp_path, period))
    assert sorted("_".join(path.name.split("_")[:2]) for path in match.files) == sorted(map("_".join, HELD.values()))


def test_maxima_that_an_older_catalogue_calls_tas_are_an_error_where_they_are_opened(tmp_path: Path) -> None:
    path = store(tmp_path, "tasmax", (2050, 2050))
    make_catalog(tmp_path, tmp_path / "cat.json")
    table = tmp_path / "cat.csv"
    table.write_text(table.read_text().replace("('tasmax',)", "('tas',)").replace("tmax-h2m-hxy-u,g110", ",g110"))
    found = Catalog.from_files([tmp_path / "cat.json"]).search(variables_and_freqs={"tas": "D"})
    with pytest.raises(DataError, match=rf"{path.name} has no variable tas; it has tasmax\. Correct the catalogue"):
        open_match(only(found))


def test_a_catalogue_of_another_tool_that_lists_names_in_files_is_understood_by_the_suffix(tmp_path: Path) -> None:
    store(tmp_path, "tasmax", (2050, 2050))
    make_catalog(tmp_path, tmp_path / "cat.json")
    table = tmp_path / "cat.csv"
    table.write_text(table.read_text().replace("('tasmax',)", "tas").replace(",glb", ",GLB"))
    (asset,) = Catalog.from_files([tmp_path / "cat.json"]).assets
    assert (asset.variables, asset.columns["region"]) == (("tasmax",), "glb")


@pytest.mark.parametrize("name", ["", "a.nc"])
def test_a_suffix_that_contradicts_cell_methods_is_a_problem_with_file_and_both_texts(
    tmp_path: Path, name: str
) -> None:
    path = store(tmp_path, "tasmax", (2050, 2050), methods="area: time: mean", name=name)
    store(tmp_path, "pr", (2050, 2050))
    report = make_catalog(tmp_path, tmp_path / "cat.json")
    ((where, reason),) = report.unreadable
    assert where == path
    assert "'tmax-h2m-hxy-u' and cell_methods" in reason


def test_a_contradiction_in_a_file_of_a_good_row_is_an_error_where_it_is_opened(tmp_path: Path) -> None:
    path = store(tmp_path, "tasmax", (2050, 2050))
    found = only(search(tmp_path, variables_and_freqs={"tasmax": "D"}))
    store(tmp_path, "tasmax", (2050, 2050), methods="area: time: mean")
    with pytest.raises(DataError, match=rf"{path.name}.*tmax-h2m-hxy-u.*area: time: mean"):
        open_match(found)


def test_a_suffix_that_the_name_contradicts_is_a_problem(tmp_path: Path) -> None:
    path = store(tmp_path, "tasmax", (2050, 2050))
    other = path.with_name(path.name.replace("tmax", "tmin"))
    path.rename(other)
    with pytest.raises(DataError, match=r"suffix is ambiguous: .*'tmax-h2m-hxy-u'.*the file's name 'tmin-h2m-hxy-u'"):
        describe(other)


def test_without_a_suffix_cell_methods_decide_and_without_both_a_file_is_left_out(tmp_path: Path) -> None:
    bare: dict[str, Any] = {"branding_suffix": "", "branded_variable": ""}
    path = store(
        tmp_path, "tasmin", (2050, 2050), name="a.nc", methods="area: mean time: minimum (interval: 1 hour)", **bare
    )
    assert describe(path)["variable"] == "('tasmin',)"
    path = store(tmp_path, "tasmin", (2050, 2050), name="b.nc", methods="", **bare)
    with pytest.raises(DataError, match="tas has no branding suffix, and cell_methods ''"):
        describe(path)


def test_the_suffix_is_that_of_the_files_variable_and_of_no_other_in_it(tmp_path: Path) -> None:
    path = store(tmp_path, "tasmax", (2050, 2050))
    ds = xr.load_dataset(path, decode_times=False)
    path.unlink()
    ds.assign(orog=ds["tas"][0].drop_vars("time").assign_attrs(cell_methods="area: mean"), other=ds["tas"]).to_netcdf(
        path
    )
    assert describe(path)["variable"] == "('tasmax', 'orog', 'other')"


def test_variables_are_renamed_where_they_are_opened(tmp_path: Path) -> None:
    store(tmp_path, "tasmax", (2050, 2050), value=290.0)
    store(tmp_path, "tasmin", (2050, 2050), value=270.0)
    store(tmp_path, "pr", (2050, 2050), value=1e-5)
    ds = open_match(only(search(tmp_path)))
    assert {name: float(ds[name].mean()) for name in ds} == pytest.approx({"tasmax": 290, "tasmin": 270, "pr": 1e-5})
    assert ds["tasmax"].attrs["cell_methods"] == "area: mean time: maximum"
    assert "cell_measures" not in ds["tasmax"].attrs


def test_a_product_that_is_made_of_cmip7_keeps_its_own_names(tmp_path: Path) -> None:
    stated = {
        "cat:mip_era": "CMIP7",
        "cat:processing_level": "extracted",
        "cat:source": "X",
        "cat:experiment": "scen7-h",
    }
    path = store(tmp_path, "tasmax", (2050, 2050), held=("tas", "tmax-h2m-hxy-u"), name="a.nc", **stated)
    assert describe(path)["variable"] == "('tas',)"


# Columns, grids, versions


def test_all_parts_of_a_run_are_columns_and_criteria(tmp_path: Path) -> None:
    run(tmp_path, (2050, 2050))
    run(tmp_path, (2050, 2050), source_id="CanESM6-0-MR", institution_id="CCCma", grid_label="g7", region="grl")
    criteria = {
        "mip_era": "CMIP7",
        "activity": "ScenarioMIP",
        "institution": "MOHC",
        "source": "UKCM2-0-LL",
        "experiment": "scen7-h",
        "member": "r1i1p1f1",
        "grid_label": "g110",
        "region": "glb",
        "branding_suffix": ["tmax-h2m-hxy-u", "tmin-h2m-hxy-u", "tavg-u-hxy-u"],
    }
    for column, value in criteria.items():
        found = search(tmp_path, other_search_criteria={column: value})
        assert "CMIP7_ScenarioMIP_MOHC_UKCM2-0-LL_scen7-h_r1i1p1f1_global" in found, column
    assert list(search(tmp_path, other_search_criteria={"region": "grl"})) == [
        "CMIP7_ScenarioMIP_CCCma_CanESM6-0-MR_scen7-h_r1i1p1f1_grl"
    ]


def test_two_grids_of_a_dataset_are_ambiguous_until_one_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path, (2050, 2050))
    run(tmp_path, (2050, 2050), grid_label="g200")
    with pytest.raises(CatalogError, match="tasmax is there with grid_label g110 and g200; add grid_label to"):
        search(tmp_path)
    match = only(search(tmp_path, other_search_criteria={"grid_label": "g200"}))
    assert {asset.columns["grid_label"] for asset in match.assets} == {"g200"}


def test_variables_on_different_grids_are_not_one_dataset(tmp_path: Path) -> None:
    store(tmp_path, "tasmax", (2050, 2050))
    store(tmp_path, "tasmin", (2050, 2050))
    store(tmp_path, "pr", (2050, 2050), grid_label="g200")
    with pytest.raises(CatalogError, match=r"several values of grid_label \(tasmax: g110; tasmin: g110; pr: g200\)"):
        search(tmp_path)


def test_the_newest_version_is_taken_and_the_older_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for version, years in (("v20260901", (2050, 2051)), ("v20261001", (2050, 2050))):
        run(tmp_path, years, version=version)
    match = only(search(tmp_path))
    assert {asset.columns["version"] for asset in match.assets} == {"v20261001"}
    assert "v20261001 is used, and v20260901" in warned(caplog)
    # A newer version of some years is not mixed with the older one of the others.
    with pytest.raises(CatalogError, match=r"files cover 50\.0% of 2050-2051"):
        search(tmp_path, ("2050", "2051"))
    for wish in ({"exclusions": {"version": "v20261001"}}, {"other_search_criteria": {"version": "v20260901"}}):
        older = only(search(tmp_path, ("2050", "2051"), **wish))
        assert {asset.columns["version"] for asset in older.assets} == {"v20260901"}


def test_ids_of_cmip7_fit_the_templates_of_products() -> None:
    sim_id = "CMIP7_ScenarioMIP_MOHC_UKCM2a-0-HH_esm-scen7-h-AQ_r1i1p1f1_global"
    template = "{tmpdir}/day+{sim_id}+{region}+{period}.zarr"
    constants = {"tmpdir": "/t", "period": "1950-2100"}
    path = render_path(template, constants | {"sim_id": sim_id, "region": "south"})
    assert match_path(template, constants, path) == {"sim_id": sim_id, "region": "south"}


# History by parents


def years_of(match: Match, variable: str = "pr") -> list[tuple[str, int, int]]:
    """The experiment in the path, the first and the last year that are used of each file of a variable."""
    return [
        (experiment, asset.start.year, (asset.end or asset.start).year - 1)
        for asset in sorted(match.assets, key=lambda asset: str(asset.start))
        if variable in asset.variables and asset.start is not None
        for experiment in [Path(asset.path).name.split("_")[6]]
    ]


def test_history_is_that_of_the_parent_and_not_what_is_called_historical(tmp_path: Path) -> None:
    run(tmp_path, (2020, 2021), **HISTORY, value=1.0)
    run(tmp_path, (2020, 2021), **HISTORY | {"experiment_id": "esm-hist"}, value=2.0)
    run(tmp_path, (2022, 2023), **parent())
    run(tmp_path, (2022, 2023), experiment_id="esm-scen7-h", **parent("esm-hist"))
    found = search(tmp_path, ("2020", "2023"))
    assert {match.columns["experiment"]: years_of(match)[0] for match in found.values()} == {
        "scen7-h": ("historical", 2020, 2021),
        "esm-scen7-h": ("esm-hist", 2020, 2021),
    }
    for name, match in found.items():
        value = 2.0 if "esm" in name else 1.0
        assert float(open_match(match)["tasmax"][0, 0, 0]) == value


def test_without_attributes_the_parent_is_the_usual_one(tmp_path: Path) -> None:
    for experiment in ("historical", "esm-hist"):
        run(tmp_path, (2020, 2021), **HISTORY | {"experiment_id": experiment}, attributes=False)
    for experiment in ("scen7-vl-AQ", "esm-scen7-h"):
        run(tmp_path, (2022, 2023), experiment_id=experiment, attributes=False)
    found = search(tmp_path, ("2020", "2023"))
    assert {match.columns["experiment"]: years_of(match)[0][0] for match in found.values()} == {
        "scen7-vl-AQ": "historical",
        "esm-scen7-h": "esm-hist",
    }


def test_a_parent_may_have_another_institution_source_and_variant(tmp_path: Path) -> None:
    other = {"source_id": "UKCM2a-0-HH", "variant_label": "r7i1p1f1"}
    run(tmp_path, (2020, 2021), **HISTORY)
    run(tmp_path, (2020, 2021), **HISTORY | other, institution_id="NIMS-KMA", region="GLB")
    run(tmp_path, (2022, 2023), **parent(**other))
    match = only(search(tmp_path, ("2020", "2023"), other_search_criteria={"source": "UKCM2-0-LL"}))
    assert match.id == "CMIP7_ScenarioMIP_MOHC_UKCM2-0-LL_scen7-h_r1i1p1f1_global"
    assert all("UKCM2a-0-HH" in str(path) for path in match.files if "historical" in path.name)
    attrs = open_match(match).attrs
    assert (attrs["institution_id"], attrs["source_id"], attrs["variant_label"]) == ("MOHC", "UKCM2-0-LL", "r1i1p1f1")


def test_extensions_are_chained_through_the_scenario_to_its_history(tmp_path: Path) -> None:
    run(tmp_path, (2020, 2021), **HISTORY)
    run(tmp_path, (2022, 2023), **parent())
    run(tmp_path, (2024, 2025), experiment_id="scen7-h-ext", **parent("scen7-h"))
    criteria = {"experiment": "scen7-h-ext"}
    match = only(search(tmp_path, ("2020", "2025"), other_search_criteria=criteria))
    assert years_of(match) == [("historical", 2020, 2021), ("scen7-h", 2022, 2023), ("scen7-h-ext", 2024, 2025)]
    assert open_match(match).sizes["time"] == 6 * 365
    # The chain ends once the period is covered.
    match = only(search(tmp_path, ("2022", "2025"), other_search_criteria=criteria))
    assert years_of(match) == [("scen7-h", 2022, 2023), ("scen7-h-ext", 2024, 2025)]
    shutil.rmtree(tmp_path / "MIP-DRS7/CMIP7/ScenarioMIP/MOHC/UKCM2-0-LL/scen7-h")
    match = only(search(tmp_path, ("2024", "2025"), other_search_criteria=criteria))
    assert years_of(match) == [("scen7-h-ext", 2024, 2025)]


def test_a_parent_that_goes_on_is_cut_on_the_childs_first_day(tmp_path: Path) -> None:
    run(tmp_path, (2020, 2024), **HISTORY, value=1.0)
    run(tmp_path, (2022, 2023), **parent(), value=2.0)
    match = only(search(tmp_path, ("2020", "2023")))
    assert years_of(match) == [("historical", 2020, 2021), ("scen7-h", 2022, 2023)]
    series = open_match(match)["tasmax"][:, 0, 0].compute()
    assert [float(part.mean()) for _, part in series.groupby("time.year")] == [1, 1, 2, 2]
    limits: Any = {}
    box = {"name": "box", "lon_bnds": (0, 9), "lat_bnds": (40, 50)}
    problems = examine_match(match, period=("2020", "2023"), regions=[box], limits=limits)
    assert not [one for one in problems if "day" in one.kind]


def test_the_chain_does_not_reach_control_runs(tmp_path: Path) -> None:
    run(tmp_path, (2018, 2019), **HISTORY | {"experiment_id": "piControl"})
    run(tmp_path, (2020, 2021), **HISTORY | parent("piControl"))
    run(tmp_path, (2022, 2023), **parent())
    scenario = {"experiment": "scen7-h"}
    assert years_of(only(search(tmp_path, match_hist_and_fut=True, other_search_criteria=scenario)))[0] == (
        "historical",
        2020,
        2021,
    )
    with pytest.raises(CatalogError, match=r"files cover 66\.7% of 2018-2023"):
        search(tmp_path, ("2018", "2023"), other_search_criteria=scenario)


def test_the_chain_crosses_only_to_a_run_that_ends_where_the_child_begins(tmp_path: Path) -> None:
    run(tmp_path, (2010, 2014), **HISTORY)
    run(tmp_path, (2022, 2023), **parent())
    with pytest.raises(
        CatalogError, match=r"historical of UKCM2-0-LL, r1i1p1f1 .* ends before 2015-01-01, and .* begins on 2022-01-01"
    ):
        search(tmp_path, ("2010", "2023"))


@pytest.mark.parametrize(
    ("history", "named", "said"),
    [
        (
            {"variant_label": "r2i1p1f1"},
            {},
            r"historical of UKCM2-0-LL, r1i1p1f1 \(CMIP7, CMIP\).* is not in the catalogue",
        ),
        ({}, {"source_id": "Other"}, r"historical of Other, r1i1p1f1 \(CMIP7, CMIP\).* is not in the catalogue"),
        ({}, {"mip_era": "CMIP6"}, r"historical of UKCM2-0-LL, r1i1p1f1 \(CMIP6, CMIP\).* is not in the catalogue"),
        ({"grid_label": "g200"}, {}, "has another grid_label: g200 in place of g110"),
    ],
)
def test_a_parent_that_is_not_there_is_named(
    tmp_path: Path, history: dict[str, str], named: dict[str, str], said: str
) -> None:
    run(tmp_path, (2020, 2021), **HISTORY | history)
    run(tmp_path, (2022, 2023), **parent(**named))
    with pytest.raises(CatalogError, match=said):
        search(tmp_path, ("2020", "2023"))


def test_two_parents_of_one_name_are_ambiguous_and_files_that_name_two_are_refused(tmp_path: Path) -> None:
    for institution in ("A", "B"):
        run(tmp_path, (2020, 2021), **HISTORY, institution_id=institution)
    run(tmp_path, (2022, 2023), **parent())
    with pytest.raises(CatalogError, match=r"is ambiguous: CMIP7_CMIP_A_.* and CMIP7_CMIP_B_"):
        search(tmp_path, ("2020", "2023"))
    store(tmp_path, "pr", (2022, 2023), **parent(variant_label="r3i1p1f1"))
    with pytest.raises(
        CatalogError, match=r"name several parents: historical of UKCM2-0-LL, r1i1p1f1.* and .*r3i1p1f1"
    ):
        search(tmp_path, ("2020", "2023"))


def test_cmip6_keeps_its_join_and_parent_attributes_that_contradict_it_only_warn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attrs = {"mip_era": "CMIP6", "activity_id": "ScenarioMIP", "institution_id": "CCCma", "source_id": "CanESM5"}
    attrs |= {
        "variant_label": "r1i1p1f1",
        "frequency": "day",
        "region": "",
        "branding_suffix": "",
        "branded_variable": "",
    }
    for variable in HELD:
        plain: dict[str, Any] = attrs | {"held": (variable, ""), "variable_id": variable, "grid_label": "gn"}
        past = plain | {"experiment_id": "historical", "activity_id": "CMIP"}
        store(tmp_path, variable, (2013, 2014), name=f"{variable}-past.nc", **past)
        store(tmp_path, variable, (2015, 2016), name=f"{variable}.nc", experiment_id="ssp585", **plain)
    make_catalog(tmp_path, tmp_path / "cat.json")
    with (tmp_path / "cat.csv").open() as file:
        assert tuple(next(csv.reader(file))) == (*COLUMNS, "grid_label")
    first = only(search(tmp_path, ("2013", "2016")))
    assert not warned(caplog)
    own = parent(variant_label="r2i1p1f1", source_id="CanESM5", mip_era="CMIP6")
    store(tmp_path, "pr", (2015, 2016), name="pr.nc", experiment_id="ssp585", **plain, **own)
    second = only(search(tmp_path, ("2013", "2016")))
    assert (first.files, first.columns) == (second.files, second.columns)
    assert "historical of CanESM5, r2i1p1f1" in warned(caplog)


def test_rows_of_cmip6_and_cmip7_do_not_disturb_one_another(tmp_path: Path) -> None:
    rows = [*rows_of_cmip6(experiment="historical", end="2004-12-31"), *rows_of_cmip6(start="2005-01-01")]
    alone = search_rows(tmp_path, rows, match_hist_and_fut=True)
    cmip7 = {"mip_era": "CMIP7", "activity": "ScenarioMIP", "experiment": "scen7-h", "region": "glb"}
    others = [row | cmip7 | {"id": "", "path": f"{row['path']}7"} for row in rows_of_cmip6(start="2005-01-01")]
    both = search_rows(tmp_path, [*others, *rows], match_hist_and_fut=True)
    assert {name: match.files for name, match in both.items()} == {name: match.files for name, match in alone.items()}


def test_periods_of_the_configuration_fit_a_history_that_ends_in_2021(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ESPO_OUTPUT", "ESPO_SCRATCH", "ESPO_CATALOGS"):
        monkeypatch.setenv(name, "/site")
    loaded = config.load([CONFIG / "espo-g6" / name for name in ("config.yml", "paths.yml", "cmip7.yml")])
    criteria = loaded.extraction.simulation.search_data_catalogs.other_search_criteria
    assert criteria["mip_era"] == "CMIP7" and loaded.extraction.simulation.search_data_catalogs.match_hist_and_fut
    assert all(name.startswith("scen7-") for name in criteria["experiment"])
    first, last = loaded.custom.ref_period
    assert int(first) >= 1850 and int(last) <= 2021, "training is equal for all scenarios of a member"
    first, last = loaded.custom.sim_period
    assert 1850 <= int(first) <= 2021 and 2022 <= int(last) <= 2100
    assert loaded.clean_up.problems == ()


# Attributes and calendars


@pytest.mark.parametrize("combine", ["override", "drop_conflicts"])
def test_what_is_opened_has_no_attribute_of_one_file_alone(tmp_path: Path, combine: str) -> None:
    run(tmp_path, (2020, 2021), **HISTORY, license_id="CC0-1.0", nominal_resolution="100 km", realization_index="r1")
    run(tmp_path, (2022, 2023), **parent(), license_id="CC-BY-4.0", source="UKCM2-0-LL: atmosphere")
    ds = open_match(only(search(tmp_path, ("2020", "2023"))), xr_combine_kwargs={"combine_attrs": combine})
    stale = {"tracking_id", "branded_variable", "branding_suffix", "variable_id", "grid_label", "region", "product"}
    stale |= {"license_id", "nominal_resolution", "realization_index", "parent_experiment_id", "parent_source_id"}
    stale |= {"cat:grid_label", "cat:region", "cat:branding_suffix", "cat:parent_experiment"}
    assert not stale & set(ds.attrs)
    expected = {"experiment_id": "scen7-h", "activity_id": "ScenarioMIP", "source_id": "UKCM2-0-LL", "mip_era": "CMIP7"}
    assert expected.items() <= ds.attrs.items()
    assert ds.attrs["cat:experiment"] == "scen7-h"


@pytest.mark.parametrize("calendar", ["julian", "utc", "tai"])
@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_calendars_that_nothing_here_knows_are_refused_by_name(tmp_path: Path, calendar: str, suffix: str) -> None:
    good = store(tmp_path, "pr", (2050, 2050))
    match = only(search(tmp_path, variables_and_freqs={"pr": "D"}))
    ds = xr.open_dataset(good, decode_times=False).load()
    ds["time"].attrs["calendar"] = calendar
    bad = tmp_path / f"bad/a{suffix}"
    bad.parent.mkdir()
    ds.to_netcdf(bad) if suffix == ".nc" else ds.to_zarr(bad, consolidated=False)
    with pytest.raises(
        DataError, match=f"the calendar of time is {calendar}, which is not supported; expected standard"
    ):
        describe(bad)
    good.unlink()
    ds.to_netcdf(good)
    with pytest.raises(DataError, match=rf"{good.name} .*the calendar of time is {calendar}"):
        open_match(match)


@pytest.mark.parametrize("grid_label", ["g110", "g105"])
def test_the_land_fraction_of_a_history_serves_a_scenario_on_its_grid(tmp_path: Path, grid_label: str) -> None:
    run(tmp_path, (2024, 2025), variant_label="r2i1p1f1", **parent(variant_label="r2i1p1f1"))
    attrs = RUN | HISTORY | {"frequency": "fx", "variable_id": "sftlf", "branding_suffix": "ti-u-hxy-u"}
    land = xr.Dataset({"sftlf": (("lat", "lon"), [[0.0, 30], [60, 100]], {"units": "%", "cell_methods": "area: mean"})})
    path = tmp_path / f"sftlf_ti-u-hxy-u_fx_glb_{grid_label}_UKCM2-0-LL_historical_r1i1p1f1.nc"
    land = land.assign_coords(lat=[40.0, 50.0], lon=[0.0, 9.0])
    land.assign_attrs(attrs, grid_label=grid_label).to_netcdf(path)
    wanted = {"variables_and_freqs": WANTED | {"sftlf": "fx"}, "other_search_criteria": {"experiment": "scen7-h"}}
    if grid_label != "g110":
        with pytest.raises(CatalogError, match=r"sftlf is there, but not of its source and grid .* grid_label g105"):
            search(tmp_path, **wanted)
        return
    found = only(search(tmp_path, **wanted))
    assert found.fixed["sftlf"].path == str(path)
    assert open_fixed(found, open_match(found))["sftlf"].values.tolist() == [[0, 30], [60, 100]]
