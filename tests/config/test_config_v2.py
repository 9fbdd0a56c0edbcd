"""Configurations of ESPO v2, in the institute's spelling: what they become, and what is refused."""

import copy
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from espo_luigi.config import RunConfig, load
from espo_luigi.errors import ConfigurationError

CONFIG = Path(__file__).parents[2] / "config"
Change = Callable[[dict[str, Any]], Any]


@pytest.fixture()
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunConfig]:
    """A function that loads the production's configuration after a change."""
    for name in ("OUTPUT", "SCRATCH", "CATALOGS"):
        monkeypatch.setenv(f"ESPO_{name}", f"/data/{name}")
    original = yaml.safe_load((CONFIG / "espo-v2" / "config.yml").read_text())
    (tmp_path / "properties.yml").write_text((CONFIG / "espo-v2" / "properties.yml").read_text())

    def load_changed(change: Change = lambda content: None, **more: Any) -> RunConfig:
        content = copy.deepcopy(original)
        change(content)
        (tmp_path / "config.yml").write_text(yaml.safe_dump({**content, **more}, sort_keys=False))
        return load([tmp_path / "config.yml", CONFIG / "espo-v2" / "paths.yml"])

    return load_changed


def test_the_values_of_2024s_sections_follow_from_those_of_v2(loaded: Any) -> None:
    config = loaded()
    assert config.subregions.n == 50000
    assert config.custom.ref_period == ("1991", "2020") and config.custom.sim_period == ("1951", "2100")
    assert config.domain.name == "NAM" and config.domain.tile_buffer == 1.5
    assert dict(config.custom.working_chunks) == {"loc": 600, "lat": 20, "lon": 20, "rlat": 20, "rlon": 20, "time": -1}
    assert dict(config.custom.final_chunks) == {"lat": 50, "lon": 50, "rlat": 50, "rlon": 50}
    assert config.reference_source == "CaSR" and config.extraction.reference.extract_dataset.mask
    assert list(config.extraction.simulation.series) == ["tasmax", "tasmin", "pr", "dtr"]
    assert config.regrid.skip_coarser and config.clean_up.temperatures == "swap" and config.clean_up.bitround is None
    assert set(config.domain_diag.domains) == {"Magtogoek", "Cree", "Ute", "Tlicho", "Atlas"}
    assert config.domain_diag.period == ("1991", "2020") and "indicators" in config.domain_diag.properties
    assert config.treatment("pr")["round_var"] == {"pr": 10}


def test_limits_of_inputs_and_products_hold_everywhere_and_in_quebec(loaded: Any) -> None:
    checks = loaded().health_checks
    assert checks.flags["tasmax"].temperature_extremely_high.thresh == "61 degC"
    assert checks.scopes["QC"].flags["pr"].very_large_precipitation_events.thresh == "400 mm/d"
    assert set(checks.flags["dtr"].arguments()) == {"negative_accumulation_values"}
    assert checks.scopes["QC"].lon_bnds == (-83, -55)
    assert checks.inputs.flags["tasmin"].temperature_extremely_low.thresh == "-95 degC"
    assert checks.inputs.scopes["QC"].flags["pr"].very_large_precipitation_events.thresh == "900 mm/d"
    assert checks.missing == {"missing_some_but_not_all": {"freq": "YS"}}


def test_without_keys_of_our_own_the_scripts_repairs_and_filling_hold(loaded: Any) -> None:
    def institutes_own(content: dict[str, Any]) -> None:
        for key in ("repairs", "days_to_fill"):
            del content["extraction"]["simulation"][key]

    ours, theirs = loaded().extraction.simulation, loaded(institutes_own).extraction.simulation
    assert theirs.repairs == ours.repairs and len(theirs.repairs) == 4
    assert theirs.days_to_fill == ("2015-01-01",)
    assert theirs.fill_in_time == {"tasmax": "forward", "tasmin": "both", "dtr": "both", "pr": "zero"}


def test_keys_without_effect_are_listed_once(loaded: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "espo_luigi")
    loaded(lambda content: content["clean_up"].update(save={"bitround": 12}))
    (line,) = [record.getMessage() for record in caplog.records if "without effect" in record.getMessage()]
    assert "chunks.pre-regrid" in line and "chunks.diag" in line and "clean_up.save.bitround" in line
    assert "health_checks.NAM.start_date" in line


def leaves(content: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all values."""
    if isinstance(content, dict) and content:
        for key, inner in content.items():
            yield from leaves(inner, (*at, key))
    else:
        yield at


def test_each_key_of_v2s_file_counts_is_refused_or_is_listed(loaded: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "espo_luigi")

    def with_all(content: dict[str, Any]) -> None:
        # Values of an anchor are apart from each other.
        content |= {**json.loads(json.dumps(content)), "io": {"to": "zarr"}, "tdd": {"to": "zarr"}}
        content["clean_up"]["save"] = {"bitround": 12}

    content = yaml.safe_load((CONFIG / "espo-v2" / "config.yml").read_text())
    with_all(content)
    before = loaded(with_all).hash
    (line,) = [record.getMessage() for record in caplog.records if "without effect" in record.getMessage()]
    listed = {one.partition(" ")[0] for one in line.partition(": ")[2].split(", ")}
    # How a run computes and logs does not count; variables and domains have the same keys.
    alike = {"tasmax", "tasmin", "dtr", "Magtogoek", "Cree", "Tlicho", "Atlas"}
    without_effect = set()
    for path in leaves(content):
        if path[0] in ("dask", "logging") or (path[0] != "extraction" and alike & set(path[:3])):
            continue
        key = ".".join(path)

        def changed(content: dict[str, Any], path: tuple[str, ...] = path) -> None:
            with_all(content)
            _set(*path, to="?")(content)

        with suppress(ConfigurationError):
            if loaded(changed).hash == before:
                without_effect.add(key)
    assert {key for key in without_effect if not key.startswith(tuple(listed))} == {"chunks.workingXY.time"}
    assert {
        one
        for one in listed
        if not alike & set(one.split(".")) and not any(key.startswith(one) for key in without_effect)
    } == set()


def test_bits_are_rounded_only_where_saving_is_told_to(loaded: Any) -> None:
    assert loaded(save_to_zarr={"bitround": 12}).clean_up.bitround == 12
    assert loaded(lambda content: content["clean_up"].update(bitround=10)).clean_up.bitround == 10


def test_variants_of_the_institute_load(loaded: Any) -> None:
    def to_2300(content: dict[str, Any]) -> None:
        simulation = content["extraction"]["simulation"]
        simulation["extract_dataset"]["periods"] = simulation["search_data_catalogs"]["periods"] = ["1950", "2300"]
        simulation["search_data_catalogs"]["restrict_members"]["ordered"] = 1
        for variable in content["biasadjust"]["variables"].values():
            variable["adjusting_args"]["periods"] = ["1950", "2300"]
        content["health_checks"]["finalNAM"]["start_date"] = "1950-01-01"

    def scaling(content: dict[str, Any]) -> None:
        tasmax = content["biasadjust"]["variables"]["tasmax"]
        tasmax["training_args"] |= {"method": "Scaling", "xsdba_train_args": {"kind": "+"}}
        tasmax["adjusting_args"]["xsdba_adjust_args"] = {"interp": "nearest"}

    assert loaded(to_2300).custom.sim_period == ("1950", "2300")
    assert loaded(scaling).biasadjust.variables["tasmax"].training_args.method == "Scaling"


def _set(*path: str, to: Any) -> Change:
    def change(content: dict[str, Any]) -> None:
        for key in path[:-1]:
            content = content.setdefault(key, {})
        content[path[-1]] = to

    return change


REPAIR = {"id": "*", "variable": "tasmax", "what": "missing"}
BOX = {"name": "s", "lon_bnds": [-80, -60], "lat_bnds": [40, 50]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            _set("biasadjust_extremes", to={"variables": {}}),
            "`biasadjust_extremes`: .*ExtremeValues.* Take",
        ),
        (_set("filter_extremes", to={"factor": 1000}), "`filter_extremes`: .*max_tail_factor"),
        (_set("custom", "regions", to={"s": BOX}), "`custom.regions` .* both are given"),
        (_set("extraction", "simulation", "extract_dataset", "mask", to=True), "is a key of the reference only"),
        (_set("extraction", "simulation", "create_mask", "variable", to="sftof"), "`sftof: fx` in the search's"),
        (_set("biasadjust", "variables", "tasmax", "training_args", "group", to="time.dayofyear"), "add_dims"),
        (_set("clean_up", "xscen_clean_up", "tas", to={}), "`clean_up.xscen_clean_up.tas`: tas is no product"),
        (_set("clean_up", "temperatures", to="swp"), "`clean_up.temperatures`.*swp"),
        (_set("full_region", "lat_bnds", to=[83, 12]), "`full_region.lat_bnds`"),
        (_set("chunks", "final", "X", to=0), "`chunks.final.X`"),
        (_set("chunks", "workingXY", "Y", to=0), "`chunks.workingXY.Y`"),
        (_set("QC", "lat_bnds", to=[63, 35]), "`QC.lat_bnds`"),
        (_set("clean_up", "xscen_clean_up", "pr", "round_var", to={"pr": -1}), "`clean_up.xscen_clean_up.pr.round_var"),
        (
            _set("clean_up", "xscen_clean_up", "pr", "round_var", to={"pr": 10, "tasmax": 2}),
            "`clean_up.xscen_clean_up.pr.round_var`: got tasmax, expected pr only",
        ),
        (
            _set("clean_up", "xscen_clean_up", "pr", "clip_var", to={"dtr": [0, None]}),
            "`clean_up.xscen_clean_up.pr.clip_var`: got dtr, expected pr only",
        ),
        (
            _set("clean_up", "xscen_clean_up", "pr", "remove_all_attrs_except", "pr", to=["*"]),
            r"except\.pr`.*'\*' is nei",
        ),
        (
            _set("clean_up", "xscen_clean_up", "pr", "remove_all_attrs_except", "pr", to=["cat:*"]),
            r"except\.pr`.*such as cat:\.\*, and got cat:\*",
        ),
        (_set("diagregion", "Ute", "lat_bnds", to=[43, 35]), "`diagregion.Ute.lat_bnds`"),
        (_set("health_checks", "finalQC", "flags", "pr", to={"very_high": {}}), "`health_checks.finalQC.flags.pr"),
        (_set("subregions", "n", to=0), "`subregions.n`"),
        (_set("partition", to={"variables": {}}), "`partition`: .*ensembles.ensemble_stats.partition"),
        (
            _set("extraction", "simulation", "repairs", to=[{**REPAIR, "where": "> 335"}]),
            r"`extraction.simulation.repairs.*where`.*> 335.*a number and units",
        ),
        (_set("extraction", "simulation", "repairs", to=[{**REPAIR, "where": "> e K"}]), "a number and units"),
        (
            _set("extraction", "simulation", "repairs", to=[{**REPAIR, "when": "31/12/2014"}]),
            "a day, a month or a year",
        ),
        (_set("extraction", "simulation", "repairs", to=[REPAIR]), "would replace all values of tasmax"),
        (
            _set("extraction", "simulation", "repairs", to=[{**REPAIR, "what": "mean_of_neighbours", "when": "2014"}]),
            "latitude and longitude of a cell",
        ),
        (_set("extraction", "reference", "CaSR", "fill_in_time", to={"pr": "zero"}), "is a key of simulations only"),
        (
            _set("diagnostics", "properties_and_measures", "change_units_arg", to={"tasmax": "degC", "tasmin": "degC"}),
            "change_units_arg` has no pr, which the property",
        ),
    ],
)
def test_what_is_wrong_is_refused_under_the_name_that_the_user_has_written(
    loaded: Any, change: Change, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        loaded(change)


def test_a_treatment_of_another_variable_is_refused_with_its_place(loaded: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"config\.yml, line \d+: `clean_up\.xscen_clean_up\.pr\.clip_var`"):
        loaded(_set("clean_up", "xscen_clean_up", "pr", "clip_var", to={"tas": [0, None]}))


def test_swapping_takes_both_adjusted_temperatures(loaded: Any) -> None:
    def without_tasmin(content: dict[str, Any]) -> None:
        del content["biasadjust"]["variables"]["tasmin"]
        del content["clean_up"]["xscen_clean_up"]["tasmin"]

    with pytest.raises(ConfigurationError, match=r"`clean_up\.temperatures: swap` takes the adjusted tasmax, tasmin"):
        loaded(without_tasmin)


def test_the_polygon_of_a_file_limits_raw_values_and_products(loaded: Any, tmp_path: Path) -> None:
    ring = [[-80, 45], [-60, 45], [-60, 60], [-80, 45]]
    (tmp_path / "quebec.geojson").write_text(json.dumps({"type": "Polygon", "coordinates": [ring]}))
    checks = loaded(QC={"name": "QC", "method": "shape", "shape": str(tmp_path / "quebec.geojson")}).health_checks
    assert checks.scopes["QC"].shape == checks.inputs.scopes["QC"].shape == ((tuple(map(tuple, ring)),),)


def test_the_number_of_members_may_be_left_open(loaded: Any) -> None:
    search = ("extraction", "simulation", "search_data_catalogs")
    assert loaded(_set(*search, "restrict_members", to={})).extraction.simulation.search_data_catalogs


def test_the_name_of_a_key_in_a_message_is_the_users_where_sections_are_compared(loaded: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"`clean_up\.xscen_clean_up\.pr\.missing_by_var`"):
        loaded(_set("clean_up", "xscen_clean_up", "pr", "missing_by_var", to={"pr": 0}))
    flags = {"pr": {"very_large_precipitation_events": {"thresh": "400 K"}}}
    with pytest.raises(ConfigurationError, match=r"`health_checks\.finalQC\.flags\.pr\.very_large"):
        loaded(_set("health_checks", "finalQC", "flags", to=flags))


def test_keys_that_only_v2_has_leave_no_trace_in_an_older_configuration() -> None:
    files = [CONFIG / "demo" / name for name in ("config.yml", "paths.yml")]
    dump = load(files).model_dump(mode="json", by_alias=True)
    assert not {"subregions", "domain-diag"} & set(dump)
    assert not {"temperatures", "bitround", "variables"} & set(dump["clean_up"])
    assert not {"create_mask", "repairs", "fill_in_time", "days_to_fill"} & set(dump["extraction"]["simulation"])
    assert "inputs" not in dump["health_checks"] and "skip_coarser" not in dump["regrid"]


def test_sections_of_v2_without_subregions_are_refused(loaded: Any) -> None:
    with pytest.raises(ConfigurationError, match="section of ESPO v2, and there is no section `subregions`"):
        loaded(lambda content: content.pop("subregions"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("bitround: 12", r"`clean_up\.bitround` would have no effect: only ESPO v2"),
        ("temperatures: dqm-dtr", r"`clean_up\.temperatures: dqm-dtr` takes the adjusted"),
        ("variables: {pr: {round_var: {pr: 8}}}, bitround: 9", r"`clean_up\.bitround`, `clean_up\.variables` would"),
    ],
)
def test_treatments_of_products_that_only_v2_does_are_refused_without_its_section(
    given: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "more.yml").write_text(f"clean_up: {{{given}}}\n")
    with pytest.raises(ConfigurationError, match=said):
        load([*(CONFIG / "demo" / name for name in ("config.yml", "paths.yml")), tmp_path / "more.yml"])


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        ("domain-diag", "diagregion"),
        ("diagnostics", "diagregion"),
        ("clean_up.variables", "clean_up.xscen_clean_up"),
        ("clean_up.variables.pr.round_var", "clean_up.xscen_clean_up.pr.round_var"),
        ("extraction.variables_and_units", "extraction.clean_up.variables_and_units"),
        ("health_checks.flags", "health_checks.finalNAM.flags"),
        ("health_checks.scopes.QC", "health_checks.finalQC"),
        ("health_checks.inputs.flags.tasmax", "health_checks.NAM.flags.tasmax"),
        ("QC", "QC"),
    ],
)
def test_null_for_a_key_of_the_schema_also_removes_that_of_v2(
    loaded: Any, tmp_path: Path, newer: str, older: str
) -> None:
    loaded()
    files = [tmp_path / "config.yml", CONFIG / "espo-v2" / "paths.yml", tmp_path / "over.yml"]
    before = load(files[:2]).hash

    def result(key: str) -> str:
        null: dict[str, Any] = {}
        inside = null
        *outer, last = key.split(".")
        for name in outer:
            inside = inside.setdefault(name, {})
        inside[last] = None
        files[2].write_text(yaml.safe_dump(null))
        with suppress(ConfigurationError):
            return load(files).hash
        return "refused"

    assert result(newer) == result(older) != before
