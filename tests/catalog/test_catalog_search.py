"""Searching catalogues: rows only, no data files."""

from __future__ import annotations

import csv
import gzip
import json
import logging
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from espo_luigi.catalog import Catalog, Match
from espo_luigi.catalog.read import read_catalogue
from espo_luigi.errors import CatalogError

DAILY = {"tasmax": "D", "tasmin": "D", "pr": "D", "dtr": "D"}
STORED = ("tasmax", "tasmin", "pr")


def row(
    variable: str | tuple[str, ...],
    start: str = "2000-01-01 00:00",
    end: str = "2009-12-31 00:00",
    *,
    source: str = "CanESM5",
    experiment: str = "ssp585",
    member: str = "r1i1p1f1",
    **columns: str,
) -> dict[str, str]:
    names = (variable,) if isinstance(variable, str) else variable
    activity = "CMIP" if experiment == "historical" else "ScenarioMIP"
    name = f"CMIP6_{activity}_CCCma_{source}_{experiment}_{member}_global"
    return {
        "id": name,
        "type": "simulation",
        "processing_level": "raw",
        "mip_era": "CMIP6",
        "activity": activity,
        "institution": "CCCma",
        "source": source,
        "experiment": experiment,
        "member": member,
        "xrfreq": "D",
        "frequency": "day",
        "variable": repr(names),
        "domain": "global",
        "date_start": start,
        "date_end": end,
        "format": "nc",
        "path": f"/data/{name}_{'-'.join(names)}_{start[:4]}.nc",
    } | columns


def rows_of(variables: tuple[str, ...] = STORED, **kwargs: Any) -> list[dict[str, str]]:
    return [row(variable, **kwargs) for variable in variables]


def description(**content: Any) -> dict[str, Any]:
    return {
        "esmcat_version": "0.1.0",
        "id": "test",
        "attributes": [],
        "assets": {"column_name": "path", "format": None, "format_column_name": "format"},
        "aggregation_control": {
            "variable_column_name": "variable",
            "groupby_attrs": ["id", "domain"],
            "aggregations": [],
        },
    } | content


def write(folder: Path, rows: list[dict[str, str]], name: str = "cat") -> Path:
    columns = list(dict.fromkeys(column for each in rows for column in each))
    with (folder / f"{name}.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows(rows)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(description(catalog_file=f"{name}.csv")))
    return path


def search(folder: Path, rows: list[dict[str, str]], **kwargs: Any) -> dict[str, Match]:
    arguments = {"variables_and_freqs": DAILY, "periods": ["2000", "2009"]} | kwargs
    return Catalog.from_files([write(folder, rows)]).search(**arguments)


def dropped(caplog: pytest.LogCaptureFixture) -> str:
    return " | ".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)


def test_a_dataset_with_all_variables_is_found_with_dtr_to_derive(tmp_path: Path) -> None:
    found = search(tmp_path, rows_of())
    assert list(found) == ["CMIP6_ScenarioMIP_CCCma_CanESM5_ssp585_r1i1p1f1_global"]
    match = next(iter(found.values()))
    assert match.derived == ("dtr",)
    assert set(match.variables) == set(STORED)
    assert len(match.assets) == 3
    assert match.columns["source"] == "CanESM5"
    assert "path" not in match.columns


@pytest.mark.parametrize(("name", "stored"), [("sfcWind", ("uas", "vas")), ("tas", ("tasmax", "tasmin"))])
def test_the_speed_of_the_wind_and_the_mean_of_temperatures_are_derived(
    tmp_path: Path, name: str, stored: tuple[str, ...]
) -> None:
    (match,) = search(tmp_path, rows_of(stored), variables_and_freqs={name: "D"}).values()
    assert match.derived == (name,) and set(match.variables) == set(stored)


def test_a_stored_dtr_has_priority_over_a_derived_one(tmp_path: Path) -> None:
    (match,) = search(tmp_path, rows_of((*STORED, "dtr"))).values()
    assert match.derived == ()
    assert "dtr" in match.variables


def test_a_stored_dtr_that_does_not_cover_the_period_is_derived_instead(tmp_path: Path) -> None:
    (match,) = search(tmp_path, [*rows_of(), row("dtr", end="2004-12-31 00:00")]).values()
    assert match.derived == ("dtr",)
    assert "dtr" not in match.variables


def test_without_conversion_a_missing_dtr_drops_the_id_with_a_warning_that_names_both(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    complete = rows_of((*STORED, "dtr"), source="MIROC6")
    found = search(tmp_path, [*rows_of(), *complete], allow_conversion=False)
    assert [name.split("_")[3] for name in found] == ["MIROC6"]
    assert "CanESM5_ssp585_r1i1p1f1_global is dropped" in dropped(caplog)
    assert "(there are pr, tasmax, tasmin)" in dropped(caplog)


def test_an_id_without_tasmin_is_dropped_because_dtr_cannot_be_derived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = search(tmp_path, [*rows_of(("tasmax", "pr")), *rows_of(source="MIROC6")])
    assert len(found) == 1
    assert "dtr is missing (there are pr, tasmax)" in dropped(caplog)


def test_one_file_may_hold_several_variables_in_tuple_or_list_form(tmp_path: Path) -> None:
    together = row(STORED)
    (match,) = search(tmp_path, [together]).values()
    assert len(match.assets) == 1
    assert match.columns["path"] == together["path"]
    (match,) = search(tmp_path, [together | {"variable": "['tasmax', 'tasmin', 'pr']"}]).values()
    assert match.assets[0].variables == STORED


def test_several_files_of_one_variable_are_taken_in_time_order_and_only_those_in_the_period(tmp_path: Path) -> None:
    decades = [("1990-01-01", "1999-12-31"), ("2000-01-01", "2004-12-31"), ("2005-01-01", "2009-12-31")]
    rows = [row(variable, start, end) for start, end in reversed(decades) for variable in STORED]
    (match,) = search(tmp_path, rows).values()
    starts = [asset.columns["date_start"] for asset in match.assets if asset.variables == ("pr",)]
    assert starts == ["2000-01-01", "2005-01-01"]


@pytest.mark.parametrize(("end", "is_found"), [("2009-11-26 00:00", True), ("2009-11-20 00:00", False)])
def test_files_must_cover_99_percent_of_the_hours_of_the_period(tmp_path: Path, end: str, is_found: bool) -> None:
    # 2000-2009 has 3653 days: 1 % is 36.5 of them.
    rows = [*rows_of(("tasmax", "tasmin")), row("pr", end=end)]
    if is_found:
        assert search(tmp_path, rows)
        return
    with pytest.raises(CatalogError, match=r"pr: files cover 98\.9% of 2000-2009 \(2000-01-01 .* to 2009-11-20 .*99%"):
        search(tmp_path, rows)


def test_of_one_variable_on_one_day_only_its_file_is_left(tmp_path: Path) -> None:
    decades = [("2000-01-01", "2004-12-31"), ("2005-01-01", "2009-12-31")]
    (match,) = search(tmp_path, [row(variable, *decade) for decade in decades for variable in STORED]).values()
    for day, name in [(datetime(2004, 12, 31), "2000"), (datetime(2005, 1, 1), "2005")]:
        part = match.on(day, "pr")
        assert [asset.path.split("_")[-1] for asset in part.assets] == [f"{name}.nc"]
        assert (part.variables, part.derived, part.periods) == (("pr",), (), ((str(day.year), str(day.year)),))
    derived = match.on(datetime(2005, 1, 1), "dtr")
    assert {asset.variables for asset in derived.assets} == {("tasmax",), ("tasmin",)} and len(derived.assets) == 2
    assert len(match.on(datetime(1999, 1, 1), "pr").assets) == 2, "that a day is missing is said when it is selected"


def test_every_one_of_several_periods_must_be_covered(tmp_path: Path) -> None:
    assert search(tmp_path, rows_of(), periods=[["2000", "2001"], ["2008", "2009"]])
    with pytest.raises(CatalogError, match=r"cover 0\.0% of 2015-2016"):
        search(tmp_path, rows_of(), periods=[["2000", "2001"], ["2015", "2016"]])


@pytest.mark.parametrize(
    ("years", "last_day", "remedy"),
    [
        ((1979, 2014, 2065, 2100), "12-31", "[[1979, 2014], [2065, 2100]]"),
        ((1970, 2014, 2065, 2110), "12-30", "[[1979, 2014], [2065, 2100]]"),
        ((1979, 2014, 2065, 2099), "06-30", ""),
        ((1979, 2039, 2045, 2100), "12-31", "[[1979, 2039], [2045, 2100]]"),
    ],
)  # fmt: skip
def test_files_of_two_stretches_of_years_are_refused_with_the_periods_that_fit(
    tmp_path: Path, years: tuple[int, int, int, int], last_day: str, remedy: str
) -> None:
    first, end, begin, last = years
    rows = [row("pr", f"{first}-01-01", f"{end}-{last_day}"), row("pr", f"{begin}-01-01", f"{last}-{last_day}")]
    with pytest.raises(CatalogError) as caught:
        search(tmp_path, rows, variables_and_freqs={"pr": "D"}, periods=["1979", "2100"])
    said = f". To leave out the years between, give `custom.sim_period: {remedy}`" if remedy else ""
    assert "of 1979-2100 (" in str(caught.value) and f"expected at least 99%{said}. Rows:" in str(caught.value)
    if remedy:
        periods = [["1979", str(end)], [str(begin), "2100"]]
        assert search(tmp_path, rows, variables_and_freqs={"pr": "D"}, periods=periods, whole=("1979", "2100"))


def test_files_that_overlap_drop_the_id_and_both_are_named(tmp_path: Path) -> None:
    rows = [*rows_of(), row("pr", "2005-06-01 00:00", "2012-12-31 00:00")]
    with pytest.raises(CatalogError, match=r"pr_2000\.nc and .*pr_2005\.nc overlap in time"):
        search(tmp_path, rows)


def test_noon_stamps_of_adjacent_files_do_not_overlap(tmp_path: Path) -> None:
    halves = [("2000-01-01 12:00", "2004-12-31 12:00"), ("2005-01-01 12:00", "2009-12-31 12:00")]
    assert search(tmp_path, [row(variable, *half) for half in halves for variable in STORED])


def test_only_exactly_the_wanted_frequency_is_found(tmp_path: Path) -> None:
    monthly = [each | {"xrfreq": "MS"} for each in rows_of()]
    with pytest.raises(CatalogError, match=r"tasmax has no rows of frequency D \(there are MS\)"):
        search(tmp_path, monthly)


def test_history_is_joined_to_each_future_experiment_with_its_activity_and_id(tmp_path: Path) -> None:
    history = rows_of(experiment="historical", end="2004-12-31 00:00")
    futures = [each for name in ("ssp245", "ssp585") for each in rows_of(experiment=name, start="2005-01-01 00:00")]
    found = search(tmp_path, [*history, *futures], match_hist_and_fut=True)
    assert [name.split("_")[4] for name in found] == ["ssp245", "ssp585"]
    for name, match in found.items():
        assert len(match.assets) == 6
        assert {asset.id for asset in match.assets} == {name}
        assert {asset.columns["activity"] for asset in match.assets} == {"ScenarioMIP"}
        assert sum("historical" in asset.path for asset in match.assets) == 3


def test_history_of_another_member_is_not_joined_and_the_warning_says_that_history_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = rows_of(experiment="historical", end="2004-12-31 00:00")
    futures = [each for m in ("r1i1p1f1", "r2i1p1f1") for each in rows_of(member=m, start="2005-01-01 00:00")]
    found = search(tmp_path, [*history, *futures], match_hist_and_fut=True)
    assert list(found) == ["CMIP6_ScenarioMIP_CCCma_CanESM5_ssp585_r1i1p1f1_global"]
    assert "r2i1p1f1_global is dropped" in dropped(caplog)


def of_institution(name: str, **kwargs: Any) -> list[dict[str, str]]:
    rows = rows_of(source="MPI-ESM1-2-HR", **kwargs)
    return [each | {"id": each["id"].replace("CCCma", name), "institution": name} for each in rows]


def test_history_of_another_institution_is_joined_if_there_is_one(tmp_path: Path) -> None:
    """CMIP6 joins runs by the parent's source, experiment and member: MPI-M made the history of DKRZ's scenarios."""
    history = of_institution("MPI-M", experiment="historical", end="2004-12-31 00:00")
    future = of_institution("DKRZ", start="2005-01-01 00:00")
    ((name, match),) = search(tmp_path, [*history, *future], match_hist_and_fut=True).items()
    assert name == "CMIP6_ScenarioMIP_DKRZ_MPI-ESM1-2-HR_ssp585_r1i1p1f1_global"
    assert match.columns["institution"] == "DKRZ"
    assert len(match.assets) == 6
    assert {asset.path for asset in match.assets} == {each["path"] for each in [*history, *future]}
    another = of_institution("DWD", experiment="historical", end="2004-12-31 00:00")
    with pytest.raises(CatalogError, match=r"is ambiguous: CMIP6_CMIP_DWD_.* and CMIP6_CMIP_MPI-M_.*Exclude one"):
        search(tmp_path, [*another, *history, *future], match_hist_and_fut=True)
    own = of_institution("DKRZ", experiment="historical", end="2004-12-31 00:00")
    (match,) = search(tmp_path, [*own, *history, *future], match_hist_and_fut=True).values()
    assert len(match.assets) == 6
    assert "MPI-M" not in {asset.columns["institution"] for asset in match.assets}


def test_history_is_that_of_the_parent_where_a_member_has_none_of_its_own(tmp_path: Path) -> None:
    history = rows_of(experiment="historical", end="2004-12-31 00:00")
    parent = {"parent_source": "CanESM5", "parent_experiment": "historical", "parent_member": "r1i1p1f1"}
    future = [each | parent for each in rows_of(member="r2i1p1f1", start="2005-01-01 00:00")]
    ((name, match),) = search(tmp_path, [*history, *future], match_hist_and_fut=True).items()
    assert name.endswith("ssp585_r2i1p1f1_global")
    assert len(match.assets) == 6


@pytest.mark.parametrize("parent", [{}, {"parent_experiment": "historical", "parent_member": "r1i1p1f1"}])
def test_history_of_another_driving_model_is_not_joined(tmp_path: Path, parent: dict[str, str]) -> None:
    def driven_by(model: str, institution: str, **kwargs: Any) -> list[dict[str, str]]:
        rows = rows_of(source="CRCM5", domain="NAM", **kwargs)
        return [
            each | parent | {"id": f"{institution}_{each['id']}", "institution": institution, "driving_model": model}
            for each in rows
        ]

    history = driven_by("CanESM5", "OURANOS", experiment="historical", end="2004-12-31 00:00")
    future = driven_by("MPI-ESM1-2-LR", "UQAM", start="2005-01-01 00:00")
    with pytest.raises(CatalogError, match="no historical run of the same simulation"):
        search(tmp_path, [*history, *future], match_hist_and_fut=True)
    own = driven_by("MPI-ESM1-2-LR", "DKRZ", experiment="historical", end="2004-12-31 00:00")
    (match,) = search(tmp_path, [*history, *own, *future], match_hist_and_fut=True).values()
    assert {asset.path for asset in match.assets} == {each["path"] for each in [*own, *future]}


def test_a_catalogue_without_history_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="ssp585_r1i1p1f1_global: no historical run of the same simulation"):
        search(tmp_path, rows_of(start="2005-01-01 00:00"), match_hist_and_fut=True)


def test_a_catalogue_of_history_alone_is_an_error_that_names_the_experiments(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"no row has a future experiment.*experiment there are: historical"):
        search(tmp_path, rows_of(experiment="historical"), match_hist_and_fut=True)


def test_observations_stay_when_history_is_matched(tmp_path: Path) -> None:
    observed = [each | {"id": "ERA5", "experiment": "", "type": "reconstruction"} for each in rows_of(source="ERA5")]
    assert list(search(tmp_path, observed, match_hist_and_fut=True)) == ["ERA5"]


def test_a_future_without_history_vanishes_even_if_it_covers_the_period_by_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = rows_of(source="MIROC6", experiment="historical", end="2004-12-31 00:00")
    continued = rows_of(source="MIROC6", start="2005-01-01 00:00")
    assert len(search(tmp_path, rows_of())) == 1, "it covers the period"
    found = search(tmp_path, [*rows_of(), *history, *continued], match_hist_and_fut=True)
    assert [match.columns["source"] for match in found.values()] == ["MIROC6"]
    assert "ssp585_r1i1p1f1_global is dropped" in dropped(caplog)


@pytest.mark.parametrize(
    ("criteria", "expected"),
    [
        ({"source": "CanESM5"}, {"CanESM5"}),
        ({"source": ["CanESM5", "MIROC6"]}, {"CanESM5", "MIROC6"}),
        ({"source": "^EC-Earth3"}, {"EC-Earth3", "EC-Earth3-Veg"}),
        ({"source": "EC-Earth3"}, {"EC-Earth3"}),
        ({"source": "C6$", "processing_level": "raw"}, {"MIROC6"}),
        ({"id": "CMIP6_.*_EC-Earth3-Veg_.*"}, {"EC-Earth3-Veg"}),
        ({}, {"CanESM5", "MIROC6", "EC-Earth3", "EC-Earth3-Veg"}),
    ],
)
def test_criteria_are_exact_lists_or_regular_expressions(
    tmp_path: Path, criteria: dict[str, Any], expected: set[str]
) -> None:
    rows = [each for name in ("CanESM5", "MIROC6", "EC-Earth3", "EC-Earth3-Veg") for each in rows_of(source=name)]
    rows = [each | {"processing_level": "raw"} if "C6" in each["source"] else each for each in rows]
    found = search(tmp_path, rows, other_search_criteria=criteria)
    assert {match.columns["source"] for match in found.values()} == expected


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("criteria", [{"source": "^EC-Earth3"}, {"source": ["CanESM5", "Veg$"]}])
def test_the_rows_that_criteria_choose_are_those_that_intake_esm_chooses(
    tmp_path: Path, criteria: dict[str, Any]
) -> None:
    intake_esm = pytest.importorskip("intake_esm")
    from espo_luigi.catalog.criteria import select

    path = write(
        tmp_path, [each for name in ("CanESM5", "EC-Earth3", "EC-Earth3-Veg") for each in rows_of(source=name)]
    )
    store = intake_esm.esm_datastore(str(path))
    theirs = set(store.search(**criteria).df["path"])
    ours = {asset.path for asset in select(list(Catalog.from_files([path]).assets), criteria, [])}
    assert ours == theirs
    assert ours


def test_a_row_is_excluded_by_any_exclusion(tmp_path: Path) -> None:
    rows = [each for name in ("CanESM5", "MIROC6", "KIOST-ESM") for each in rows_of(source=name)]
    found = search(tmp_path, rows, exclusions={"id": [rows[-1]["id"]], "source": "^MIROC"})
    assert [match.columns["source"] for match in found.values()] == ["CanESM5"]


def test_an_exclusion_of_a_future_applies_to_the_history_that_was_joined_to_it(tmp_path: Path) -> None:
    history = rows_of(experiment="historical", end="2004-12-31 00:00")
    futures = [each for name in ("ssp245", "ssp585") for each in rows_of(experiment=name, start="2005-01-01 00:00")]
    found = search(tmp_path, [*history, *futures], match_hist_and_fut=True, exclusions={"id": [futures[0]["id"]]})
    assert [match.columns["experiment"] for match in found.values()] == ["ssp585"]


def test_an_empty_result_names_the_criterion_that_emptied_it_the_counts_and_the_values_there(tmp_path: Path) -> None:
    rows = [each for name in ("CanESM5", "MIROC6") for each in rows_of(source=name)]
    with pytest.raises(CatalogError) as caught:
        search(tmp_path, rows, other_search_criteria={"processing_level": "raw", "source": ["CanESM6"]})
    message = str(caught.value)
    assert "source there are: CanESM5, MIROC6" in message
    assert "Did you mean CanESM5?" in message
    assert f"6 rows in {tmp_path / 'cat.json'}; 6 with processing_level = raw; 0 with source = CanESM6" in message


def test_of_several_wanted_values_those_that_no_row_has_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [each for name in ("CanESM5", "MIROC6") for each in rows_of(source=name)]
    found = search(tmp_path, rows, other_search_criteria={"source": ["CanESM6", "MIROC6", "MRI.*"]})
    assert [match.columns["source"] for match in found.values()] == ["MIROC6"]
    search(tmp_path, rows, other_search_criteria={"source": ["CanESM5", "MIROC6", "MIROC6A"]})
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    nothing = "the search finds nothing with source = {}, and goes on without."
    # MIROC6 is wanted already.
    assert said == [nothing.format("CanESM6, MRI.*") + " Did you mean CanESM5?", nothing.format("MIROC6A")]


@pytest.mark.parametrize("rows_of_it", [[], [row("tasmax", experiment="ssp245")]])
def test_an_experiment_without_any_simulation_is_refused_unless_it_may_be_missing(
    tmp_path: Path, rows_of_it: list[dict[str, str]]
) -> None:
    rows, wanted = [*rows_of(), *rows_of_it], {"experiment": ["ssp585", "ssp245"]}
    with pytest.raises(CatalogError, match=r"experiment = ssp245, only with ssp585.*allow_missing") as error:
        search(tmp_path, rows, other_search_criteria=wanted)
    assert ("ssp245_r1i1p1f1_global: " in str(error.value)) == bool(rows_of_it)
    found = search(tmp_path, rows, other_search_criteria=wanted, allow_missing=True)
    assert [match.columns["experiment"] for match in found.values()] == ["ssp585"]


def test_history_that_was_joined_to_futures_is_not_missed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    history = rows_of(experiment="historical", end="2004-12-31 00:00")
    rows = [*history, *rows_of(start="2005-01-01 00:00")]
    wanted = {"experiment": ["historical", "ssp585"]}
    assert len(search(tmp_path, rows, other_search_criteria=wanted, match_hist_and_fut=True)) == 1
    assert caplog.records == []


def test_a_criterion_that_is_no_column_is_an_error_that_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"'sources' is no column .*did you mean source\?"):
        search(tmp_path, rows_of(), other_search_criteria={"sources": "CanESM5"})
    with pytest.raises(CatalogError, match=r"criterion source: '\*\[' is not a regular expression"):
        search(tmp_path, rows_of(), other_search_criteria={"source": "*["})


def test_the_first_member_in_natural_order_is_kept_for_each_model_and_experiment(tmp_path: Path) -> None:
    rows = [
        each
        for experiment in ("ssp245", "ssp585")
        for member in ("r10i1p1f1", "r2i1p1f1", "r11i1p1f1")
        for each in rows_of(member=member, experiment=experiment)
    ]
    found = search(tmp_path, rows, most_members=1)
    assert [(m.columns["experiment"], m.columns["member"]) for m in found.values()] == [
        ("ssp245", "r2i1p1f1"),
        ("ssp585", "r2i1p1f1"),
    ]
    two = search(tmp_path, rows, most_members=2)
    assert {match.columns["member"] for match in two.values()} == {"r2i1p1f1", "r10i1p1f1"}


def test_members_are_restricted_among_those_that_have_all_variables(tmp_path: Path) -> None:
    rows = [*rows_of(("tasmax", "pr"), member="r1i1p1f1"), *rows_of(member="r3i1p1f1")]
    (match,) = search(tmp_path, rows, most_members=1).values()
    assert match.columns["member"] == "r3i1p1f1"


def test_two_processing_levels_of_one_id_are_ambiguous_until_one_is_asked_for(tmp_path: Path) -> None:
    rows = [*rows_of(), *(each | {"processing_level": "extracted", "path": each["path"] + "x"} for each in rows_of())]
    with pytest.raises(CatalogError, match="processing_level extracted and raw; add processing_level"):
        search(tmp_path, rows)
    assert search(tmp_path, rows, other_search_criteria={"processing_level": "raw"})


def test_ids_come_in_order_and_catalogues_are_joined_without_doubles(tmp_path: Path) -> None:
    first = write(tmp_path, [*rows_of(source="MIROC6"), *rows_of(source="CanESM5")], "first")
    second = write(tmp_path, [*rows_of(source="CanESM5"), *rows_of(source="ACCESS")], "second")
    catalog = Catalog.from_files([first, second])
    assert len(catalog.assets) == 9
    found = catalog.search(variables_and_freqs=DAILY, periods=["2000", "2009"])
    assert [match.columns["source"] for match in found.values()] == ["ACCESS", "CanESM5", "MIROC6"]


def test_a_missing_catalogue_is_named_with_the_way_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"absent\.json does not exist.*espo catalog FOLDER --out cat\.json"):
        Catalog.from_files([tmp_path / "absent.json"])
    path = write(tmp_path, rows_of())
    (tmp_path / "cat.csv").unlink()
    with pytest.raises(CatalogError, match=r"cat\.csv, the catalog_file of catalogue .*cat\.json, does not exist"):
        Catalog.from_files([path])


def test_a_catalogue_that_is_none_says_what_was_expected(tmp_path: Path) -> None:
    path = tmp_path / "cat.json"
    path.write_text("{not json")
    with pytest.raises(CatalogError, match=r"cat\.json cannot be read .*intake-esm JSON"):
        Catalog.from_files([path])
    path.write_text("{}")
    with pytest.raises(CatalogError, match="neither catalog_file nor catalog_dict"):
        Catalog.from_files([path])
    path = write(tmp_path, [{"id": "a", "path": "b"}])
    with pytest.raises(CatalogError, match=r"no column xrfreq nor variable"):
        Catalog.from_files([path])


def test_a_gzipped_table_and_an_inline_table_are_read_alike(tmp_path: Path) -> None:
    plain = write(tmp_path, rows_of())
    (tmp_path / "cat.csv.gz").write_bytes(gzip.compress((tmp_path / "cat.csv").read_bytes()))
    zipped, inline = tmp_path / "zipped.json", tmp_path / "inline.json"
    zipped.write_text(json.dumps(description(catalog_file="cat.csv.gz")))
    inline.write_text(json.dumps(description(catalog_dict=rows_of())))
    assert Catalog.from_files([zipped]).assets == Catalog.from_files([plain]).assets
    assert Catalog.from_files([inline]).assets == Catalog.from_files([plain]).assets
    (tmp_path / "inline.json.gz").write_bytes(gzip.compress(inline.read_bytes()))
    assert Catalog.from_files([tmp_path / "inline.json.gz"]).assets == Catalog.from_files([plain]).assets


def test_relative_paths_are_relative_to_the_catalogue_and_missing_ids_are_made(tmp_path: Path) -> None:
    bare = {key: value for key, value in row("pr").items() if key != "id"} | {"path": "sub/pr.nc"}
    (asset,) = Catalog.from_files([write(tmp_path, [bare])]).assets
    assert asset.path == str(tmp_path / "sub/pr.nc")
    assert asset.id == "CMIP6_ScenarioMIP_CCCma_CanESM5_ssp585_r1i1p1f1_global"


def test_the_last_day_of_a_360_day_february_is_a_date(tmp_path: Path) -> None:
    assert search(tmp_path, rows_of(end="2010-02-30 00:00"))


def damaged(folder: Path, old: str, new: str, rows: list[dict[str, str]] | None = None) -> Path:
    """A catalogue in whose CSV file one place was changed."""
    path = write(folder, rows or rows_of())
    table = path.with_suffix(".csv")
    content = table.read_bytes()
    assert content.count(old.encode()) >= 1
    table.write_bytes(content.replace(old.encode(), new.encode("utf-8", "surrogateescape"), 1))
    return path


def faults_of(path: Path) -> list[str]:
    return [fault for asset in Catalog.from_files([path]).assets for fault in asset.faults.values()]


@pytest.mark.parametrize("zipped", [False, True])
def test_a_byte_order_mark_as_excel_writes_it_is_no_part_of_the_first_column(tmp_path: Path, zipped: bool) -> None:
    path = write(tmp_path, rows_of())
    expected = Catalog.from_files([path]).assets
    content = b"\xef\xbb\xbf" + path.with_suffix(".csv").read_bytes()
    (tmp_path / "bom.csv.gz").write_bytes(gzip.compress(content))
    (tmp_path / "bom.csv").write_bytes(content)
    text = json.dumps(description(catalog_file="bom.csv.gz" if zipped else "bom.csv"))
    path.write_text(text, encoding="utf-8-sig")
    assert Catalog.from_files([path]).assets == expected


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (",\"('tasmin',)\"", ",\"('tasmin',)", r"cat\.csv, line 3: .*quote"),
        ("pr_2000.nc", '"pr_2000.nc', None),
        (",nc,/data", ",nc/data", r"cat\.csv, line 2: got 16 cells.*expected 17.*line 1"),
        (",nc,/data", ",nc,,/data", r"cat\.csv, line 2: got 18 cells.*expected 17"),
        (",nc,/data", ",nc,/\0data", r"cat\.csv, line 2: got a NUL byte"),
        (",member,", ",source,", r"cat\.csv, line 1: the column source is there twice"),
        (",member,", ",,", r"cat\.csv, line 2: .*r1i1p1f1.*column 9 has no name"),
        ("simulation", "simulaci\udcf3n", r"cat\.csv, line 2: got the byte 0xf3.*expected UTF-8"),
    ],
)
def test_damage_of_the_table_stops_at_once_with_file_and_line(
    tmp_path: Path, old: str, new: str, said: str | None
) -> None:
    path = damaged(tmp_path, old, new)
    if said is None:
        assert [asset.path[-11:] for asset in Catalog.from_files([path]).assets][-1] == '"pr_2000.nc'
        return
    with pytest.raises(CatalogError, match=said):
        Catalog.from_files([path])


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        *(("date_start", cell) for cell in ("10000-01-01", "2015-1-31", "2015-01-1", "2015-00-10", "2015-13-01")),
        *(("date_start", cell) for cell in ("2015-01-32", "2015-04-31", "0000-01-01", "2015-0301", "20150", "201")),
        *(
            ("date_start", cell)
            for cell in ("2015-01-01x", "2015-01-01 25:00", "2015-01-01 noon", "2015.0", "31/12/2015")
        ),
        ("date_end", "1999-12-31"),
        *(("variable", cell) for cell in ("{[]}", "()", "[]", "('',)", "", "('tasmax'", "['tasmax' 'tasmin']")),
        *(("variable", cell) for cell in ("tasmax, tasmin", "{'tasmax': 1}", "[[['tasmax']]]", "[None]")),
        *(
            ("id", cell)
            for cell in ("CMIP6/tasmax", "..", "a+b", "<img src=x onerror=y>", "a\nb", "a\x07b", "a\u2028b")
        ),
        ("xrfreq", ""),
        ("xrfreq", "1 D"),
        ("format", "grib"),
        *(
            ("path", cell)
            for cell in ("", "/data/a\nb.nc", "/data/$AWS_SECRET_ACCESS_KEY.nc", "${TOKEN}/a.nc", "${}a.nc")
        ),
        *(("path", cell) for cell in ("https://h/$HOME.nc", "s3://bucket/a.zarr?version=${TOKEN}")),
    ],
)
def test_a_cell_that_cannot_be_used_is_named_with_file_line_and_what_was_expected(
    tmp_path: Path, column: str, cell: str
) -> None:
    rows = rows_of()
    rows[1][column] = cell
    got = repr(cell) if cell else "empty"
    path = write(tmp_path, rows)
    (fault,) = faults_of(path)
    assert fault.startswith(f"{tmp_path / 'cat.csv'}, line 3: {column} is {got}; expected ")
    with pytest.raises(CatalogError) as caught:
        Catalog.from_files([path]).search(variables_and_freqs=DAILY, periods=["2000", "2009"])
    assert fault in str(caught.value)
    assert "exclusions" in str(caught.value)


def test_an_id_that_is_made_of_the_columns_must_be_usable_too(tmp_path: Path) -> None:
    rows = rows_of()
    for each in rows:
        del each["id"]
    rows[0]["institution"] = "NOAA/GFDL"
    rows[1] |= dict.fromkeys(("mip_era", "activity", "institution", "source", "experiment", "member", "domain"), "")
    first, second = faults_of(write(tmp_path, rows))
    assert "line 2: id, made of mip_era" in first
    assert "ScenarioMIP_NOAA/GFDL_CanESM5_" in first
    assert "line 3: id is empty; expected" in second


def test_of_environment_variables_only_the_few_of_the_list_are_replaced_in_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    monkeypatch.setenv("USER", "me")
    monkeypatch.setenv("TOKEN", "hunter2")
    monkeypatch.delenv("PROJECT", raising=False)
    cells = {
        "$SCRATCH/a.nc": "/scratch/me/a.nc",
        "${SCRATCH}/$USER.nc": "/scratch/me/me.nc",
        "raw/${PROJECT}/a$.nc": f"{tmp_path}/raw/${{PROJECT}}/a$.nc",
        "/data/$TOKEN.nc": "/data/$TOKEN.nc",
        "https://host/$USER.nc?token=$TOKEN": "https://host/$USER.nc?token=$TOKEN",
    }
    found = read_catalogue(write(tmp_path, [row("pr", path=cell) for cell in cells]))
    assert [asset.path for asset in found] == list(cells.values())
    assert [list(asset.faults) for asset in found] == [[], [], [], ["path"], ["path"]]
    assert not any("hunter2" in str(asset) for asset in found)


def test_a_catalogue_cannot_name_its_table_by_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    path = tmp_path / "cat.json"
    path.write_text(json.dumps(description(catalog_file="$TOKEN.csv")))
    with pytest.raises(
        CatalogError, match=r"catalog_file of .*cat\.json is '\$TOKEN\.csv'; expected a path with no other"
    ):
        read_catalogue(path)


@pytest.mark.parametrize(
    ("cell", "start", "end"),
    [
        ("2015", datetime(2015, 1, 1), datetime(2016, 1, 1)),
        ("2015-03", datetime(2015, 3, 1), datetime(2015, 4, 1)),
        ("201503", datetime(2015, 3, 1), datetime(2015, 4, 1)),
        ("20150301", datetime(2015, 3, 1), datetime(2015, 3, 2)),
        ("2015-03-01 0:00", datetime(2015, 3, 1), datetime(2015, 3, 2)),
        ("2015-03-01 12:00:00", datetime(2015, 3, 1), datetime(2015, 3, 2)),
        ("2015-03-01T12:00:00Z", datetime(2015, 3, 1), datetime(2015, 3, 2)),
        ("2015-03-01T12:00:00.000000000", datetime(2015, 3, 1), datetime(2015, 3, 2)),
        ("2015-03-01 12:00:00+00:00", datetime(2015, 3, 1), datetime(2015, 3, 2)),
        ("201503011200", datetime(2015, 3, 1), datetime(2015, 3, 2)),
        ("2015-02-30", datetime(2015, 2, 28), datetime(2015, 3, 1)),
        ("2015-02-29 12:00", datetime(2015, 2, 28), datetime(2015, 3, 1)),
        ("9999-12-31", datetime(9999, 12, 31), datetime.max),
    ],
)
def test_a_date_may_be_a_year_a_month_or_a_day_with_or_without_hours(
    tmp_path: Path, cell: str, start: datetime, end: datetime
) -> None:
    (asset,) = Catalog.from_files([write(tmp_path, [row("pr", cell, cell)])]).assets
    assert (asset.faults, asset.start, asset.end) == ({}, start, end)


def test_a_period_that_is_no_date_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"'2009-1-31' is not a date \(a period\); expected a date such as 2015"):
        search(tmp_path, rows_of(), periods=["2000", "2009-1-31"])


BROKEN = {"date_end": "2100-1-31"}


@pytest.mark.parametrize(
    ("broken", "arguments"),
    [
        (row("pr", source="MIROC6", **BROKEN), {"other_search_criteria": {"source": "CanESM5"}}),
        (row("pr", source="MIROC6", **BROKEN), {"exclusions": {"source": "MIROC6"}}),
        (row("pr", path="", version="old"), {"exclusions": {"version": "old"}}),
        (row("huss", **BROKEN), {}),
        (row("pr", xrfreq="MS", **BROKEN), {}),
        (row("huss") | {"variable": "('huss',"}, {}),
        (row("pr", "1990-01-01", "1999-12-31", path=""), {}),
        (row("pr", member="r20i1p1f1", **BROKEN), {"most_members": 1}),
        (row("dtr", **BROKEN), {"allow_conversion": False, "variables_and_freqs": dict.fromkeys(STORED, "D")}),
        (row("pr", id="a/b"), {"other_search_criteria": {"id": row("pr")["id"]}}),
    ],
)
def test_a_row_that_the_search_does_not_want_is_left_out_with_one_warning_however_broken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: dict[str, str], arguments: dict[str, Any]
) -> None:
    found = search(tmp_path, [*rows_of(), broken], **arguments)
    assert found == search(tmp_path, rows_of(), **{key: arguments[key] for key in arguments if key != "exclusions"})
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said.startswith("the search leaves out 1 row with a cell that cannot be used: ")
    assert f"{tmp_path / 'cat.csv'}, line 5: " in said


@pytest.mark.parametrize(
    ("broken", "arguments"),
    [
        (row("pr", "2010-01-01", **BROKEN), {"other_search_criteria": {"source": "CanESM5"}}),
        (row("tasmin", source="MIROC6", path=""), {"other_search_criteria": {"path": "MIROC6|CanESM5|/data*"}}),
        (row("pr") | {"variable": "{[]}"}, {"other_search_criteria": {"variable": ["tasmax", "tasmin", "pr"]}}),
        (row("pr", xrfreq="?"), {}),
        (row("pr", member="r1i1p1f0", **BROKEN), {"most_members": 1}),
        (row("dtr", **BROKEN), {}),
    ],
)
def test_a_row_that_the_search_may_want_stops_it_and_is_named_with_its_line(
    tmp_path: Path, broken: dict[str, str], arguments: dict[str, Any]
) -> None:
    others = [each | {"id": "OTHER", "source": "CanESM5-1"} for each in rows_of(member="r9i1p1f1")]
    if "source" in arguments.get("other_search_criteria", {}):
        arguments = {"other_search_criteria": {"source": "CanESM5*"}}
    with pytest.raises(CatalogError, match=r"the search wants 1 row .*cat\.csv, line 5: .*Correct.*exclusions"):
        search(tmp_path, [*rows_of(), broken, *others], **arguments)


def test_values_that_a_message_lists_have_no_control_characters(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="values of source there are: a") as caught:
        search(tmp_path, rows_of(source="a\x1b[2J", id="x"), other_search_criteria={"source": "b"})
    assert "\x1b" not in str(caught.value)


def test_a_run_with_two_ids_is_dropped_and_stops_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        each | ({"date_end": "2004-12-31"} if experiment == "historical" else {"date_start": "2005-01-01"})
        for experiment in ("historical", "ssp585")
        for source in ("CanESM5", "MIROC6")
        for each in rows_of(source=source, experiment=experiment)
    ]
    rows[-1]["id"] = "another"
    found = search(tmp_path, rows, match_hist_and_fut=True)
    assert list(found) == [row("pr")["id"]]
    assert "ssp585 of one run has two ids" in dropped(caplog)
    with pytest.raises(CatalogError, match="experiment ssp585 of one run has two ids"):
        search(tmp_path, rows, match_hist_and_fut=True, other_search_criteria={"source": "MIROC6"})


def test_a_broken_historical_row_is_named_once_however_many_futures_it_was_joined_to(tmp_path: Path) -> None:
    history = [each | BROKEN for each in rows_of(experiment="historical")]
    futures = [each for name in ("ssp245", "ssp585") for each in rows_of(experiment=name)]
    with pytest.raises(CatalogError, match="the search wants 3 rows "):
        search(tmp_path, [*history, *futures], match_hist_and_fut=True)


def test_of_many_broken_rows_a_few_are_named_with_the_number_of_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    search(tmp_path, [*rows_of(), *(row("huss", path="") for _ in range(30))])
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("the search leaves out 30 rows with a cell that cannot be used: ")
    assert said.count("path is empty") == 5
    assert "and 25 more" in said


def test_an_error_of_a_search_that_finds_nothing_counts_the_rows_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(
        CatalogError, match=r"4 rows in .*cat\.json \(1 row with a cell that cannot be used: .*line 5: date_end"
    ):
        search(tmp_path, [*rows_of(), row("pr", **BROKEN)], other_search_criteria={"source": "MIROC6"})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"catalog_dict": {"id": ["a"]}}, r"catalog_dict of .*cat\.json is a mapping; expected a list"),
        ({"catalog_dict": "rows"}, r"catalog_dict of .*cat\.json is a text; expected a list"),
        ({"catalog_dict": [row("pr"), 5]}, r"catalog_dict of .*cat\.json, row 2: got a number; expected a mapping"),
        ({"catalog_dict": [], "assets": ["path"]}, r"assets of .*cat\.json is a list; expected a mapping"),
        ({"catalog_dict": [], "assets": {"column_name": 5}}, r"assets\.column_name of .* is a number; expected a text"),
        ({"catalog_dict": [], "aggregation_control": "x"}, r"aggregation_control of .* is a text; expected a mapping"),
        ({"catalog_file": 3}, r"catalog_file of .*cat\.json is a number; expected a text"),
        ({"catalog_file": "a\0b"}, r"catalog_file of .*cat\.json is 'a\\x00b'; expected the path"),
        ({"catalog_file": None}, "neither catalog_file nor catalog_dict"),
    ],
)
def test_a_description_of_the_wrong_kind_is_a_sentence(tmp_path: Path, content: dict[str, Any], said: str) -> None:
    path = tmp_path / "cat.json"
    path.write_text(json.dumps(content))
    with pytest.raises(CatalogError, match=said):
        Catalog.from_files([path])


def test_a_key_that_is_twice_in_a_row_of_the_json_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cat.json"
    path.write_text(
        json.dumps(description(catalog_dict=[row("pr")])).replace('"mip_era"', '"path": "/a.nc", "mip_era"')
    )
    with pytest.raises(CatalogError, match=r"cat\.json cannot be read \('path' is there twice"):
        Catalog.from_files([path])
    path.write_text("[" * 100_000)
    with pytest.raises(CatalogError, match=r"cat\.json cannot be read"):
        Catalog.from_files([path])


def test_a_bad_cell_of_a_table_inside_the_json_file_is_named_by_its_row(tmp_path: Path) -> None:
    path = tmp_path / "cat.json"
    path.write_text(json.dumps(description(catalog_dict=[row("pr"), row("tasmax", path="")])))
    assert faults_of(path)[0].startswith(f"catalog_dict of {path}, row 2: path is empty; expected ")


def test_the_column_that_the_description_names_goes_before_a_column_called_path(tmp_path: Path) -> None:
    path = write(tmp_path, [row("pr", path="/wrong.nc", uri="/right.nc")])
    path.write_text(json.dumps(description(catalog_file="cat.csv", assets={"column_name": "uri"})))
    assert [asset.path for asset in Catalog.from_files([path]).assets] == ["/right.nc"]


def test_damaged_compression_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, rows_of())
    content = bytearray(gzip.compress(path.with_suffix(".csv").read_bytes(), mtime=0))
    path.write_text(json.dumps(description(catalog_file="cat.csv.gz")))
    for damage in (content[:-9], content[:40] + b"\xff\xff\xff\xff" + content[44:], b"id,path"):
        (tmp_path / "cat.csv.gz").write_bytes(damage)
        with pytest.raises(CatalogError, match=r"cat\.csv\.gz, the catalog_file of catalogue .*cannot be read"):
            Catalog.from_files([path])
