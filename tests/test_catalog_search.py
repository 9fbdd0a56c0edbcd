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
    assert "dtr is missing (there are pr, tasmax, tasmin)" in dropped(caplog)


def test_an_id_without_tasmin_is_dropped_because_dtr_cannot_be_derived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = search(tmp_path, [*rows_of(("tasmax", "pr")), *rows_of(source="MIROC6")])
    assert len(found) == 1
    assert "dtr is missing (there are pr, tasmax), and it cannot be derived: tasmin is missing" in dropped(caplog)


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
    with pytest.raises(CatalogError, match="allow_resampling is true; expected false"):
        search(tmp_path, rows_of(), allow_resampling=True)


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
    assert "r2i1p1f1_global is dropped from the search: no historical run of the same simulation" in dropped(caplog)


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
    assert "CanESM5_ssp585_r1i1p1f1_global is dropped from the search: no historical run" in dropped(caplog)


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
    assert "no row has source = CanESM6; the values of source there are: CanESM5, MIROC6" in message
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
    found = search(tmp_path, rows, restrict_members={"ordered": 1})
    assert [(m.columns["experiment"], m.columns["member"]) for m in found.values()] == [
        ("ssp245", "r2i1p1f1"),
        ("ssp585", "r2i1p1f1"),
    ]
    two = search(tmp_path, rows, restrict_members={"ordered": 2})
    assert {match.columns["member"] for match in two.values()} == {"r2i1p1f1", "r10i1p1f1"}
    with pytest.raises(CatalogError, match=r"restrict_members is \{'random': 1\}; expected \{ordered: n\}"):
        search(tmp_path, rows, restrict_members={"random": 1})


def test_members_are_restricted_among_those_that_have_all_variables(tmp_path: Path) -> None:
    rows = [*rows_of(("tasmax", "pr"), member="r1i1p1f1"), *rows_of(member="r3i1p1f1")]
    (match,) = search(tmp_path, rows, restrict_members={"ordered": 1}).values()
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


def test_relative_paths_are_relative_to_the_catalogue_and_missing_ids_are_made(tmp_path: Path) -> None:
    bare = {key: value for key, value in row("pr").items() if key != "id"} | {"path": "sub/pr.nc"}
    (asset,) = Catalog.from_files([write(tmp_path, [bare])]).assets
    assert asset.path == str(tmp_path / "sub/pr.nc")
    assert asset.id == "CMIP6_ScenarioMIP_CCCma_CanESM5_ssp585_r1i1p1f1_global"


def test_the_last_day_of_a_360_day_february_is_a_date(tmp_path: Path) -> None:
    assert search(tmp_path, rows_of(end="2010-02-30 00:00"))
