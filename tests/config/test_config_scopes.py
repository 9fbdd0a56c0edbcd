"""Sets of health checks for parts of the domain: boxes, and the polygons of GeoJSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import shapefile

from espo_luigi.config.schema import fingerprint
from espo_luigi.errors import ConfigurationError

RING = [[-79.5, 45.0], [-57.0, 45.0], [-57.0, 62.5], [-79.5, 62.5], [-79.5, 45.0]]
HOLE = [[-75, 50], [-74, 50], [-74, 51, 300.0], [-75, 50]]
POLYGON = {"type": "Polygon", "coordinates": [RING, HOLE]}
FLAGS = "flags: {pr: {very_large_precipitation_events: {thresh: 400 mm/d}}}"


def scope_of_file(load_with: Any, path: Path, content: Any) -> Any:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return load_with(f"health_checks: {{scopes: {{QC: {{shape: {path.name}, {FLAGS}}}}}}}").health_checks


def test_a_box_is_given_to_the_checks_with_its_set_and_the_whole_domain_s_set_stays(load_with: Any) -> None:
    whole = "health_checks: {raise_on: [freq], flags: {pr: {negative_accumulation_values: }}}"
    box = (
        f"health_checks: {{scopes: {{QC: {{lon_bnds: [-83, -55], lat_bnds: [42, 63], {FLAGS}, raise_on: [missing]}}}}}}"
    )
    arguments = load_with(whole, box).health_checks.arguments()
    assert arguments["raise_on"] == ("freq",) and set(arguments["flags"]["pr"]) == {"negative_accumulation_values"}
    quebec = arguments["scopes"]["QC"]
    assert (quebec["lon_bnds"], quebec["lat_bnds"], quebec["raise_on"]) == ((-83, -55), (42, 63), ("missing",))
    assert quebec["flags"] == {"pr": {"very_large_precipitation_events": {"thresh": "400 mm/d"}}}
    assert "shape" not in quebec
    assert "scopes" not in load_with(whole).health_checks.arguments()


def test_the_polygons_of_a_file_are_read_with_the_configuration(load_with: Any, tmp_path: Path) -> None:
    checks = scope_of_file(load_with, tmp_path / "quebec.geojson", POLYGON)
    ((outline, hole),) = checks.arguments()["scopes"]["QC"]["shape"]
    assert [list(point) for point in outline] == RING
    assert hole[2] == (-74, 51)


def test_checks_become_stale_when_the_file_of_a_scope_changes(load_with: Any, tmp_path: Path) -> None:
    path = tmp_path / "quebec.geojson"
    before = fingerprint(load_with(), "health_checks")
    found = []
    for ring in (RING, [[lon + 1, lat] for lon, lat in RING], RING):
        path.write_text(json.dumps({"type": "Polygon", "coordinates": [ring]}))
        config = load_with(f"health_checks: {{scopes: {{QC: {{shape: {path}}}}}}}")
        found.append(fingerprint(config, "health_checks"))
    assert found[0] == found[2] != found[1]
    assert before not in found


def test_the_polygons_of_a_shapefile_are_read_with_the_configuration(load_with: Any, tmp_path: Path) -> None:
    with shapefile.Writer(tmp_path / "quebec.shp") as writer:
        writer.field("NAME", "C")
        writer.shape(POLYGON | {"coordinates": [RING]})
        writer.record("QC")
    checks = load_with("health_checks: {scopes: {QC: {shape: quebec.shp}}}").health_checks
    (((*outline,),),) = checks.arguments()["scopes"]["QC"]["shape"]
    assert sorted(map(list, outline)) == sorted(RING)


def test_a_file_without_polygons_in_degrees_is_refused(load_with: Any, tmp_path: Path) -> None:
    """With the sentences of the reader, which has tests of its own."""
    metres = POLYGON | {"coordinates": [[[5e5, 4e6], [6e5, 4e6], [6e5, 5e6], [5e5, 4e6]]]}
    with pytest.raises(ConfigurationError, match=r"`health_checks.scopes.QC.shape` \(.*like 500000, 4e\+06; expected"):
        scope_of_file(load_with, tmp_path / "quebec.geojson", metres)


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("{}", "expected either both lon_bnds and lat_bnds, or shape"),
        ("{lon_bnds: [-83, -55]}", "expected either both lon_bnds and lat_bnds, or shape"),
        ("{lon_bnds: [-83, -55], lat_bnds: [42, 95]}", "expected degrees north within -90..90"),
        ("{shape: nowhere.geojson}", "nowhere.geojson cannot be read"),
        ("{lon_bnds: [-83, -55], lat_bnds: [42, 63], raise_on: [mising]}", "did you mean missing?"),
        (
            "{lon_bnds: [-83, -55], lat_bnds: [42, 63], end_date: '2101-01-01'}",
            "`health_checks.scopes.QC.end_date`: got",
        ),
        (
            "{lon_bnds: [-83, -55], lat_bnds: [42, 63], flags: {pr: {very_large_precipitation_events: {thresh: 1 K}}}}",
            "`health_checks.scopes.QC.flags.pr.very_large_precipitation_events.thresh`: got '1 K'",
        ),
    ],
)
def test_a_scope_that_could_only_fail_later_is_refused(load_with: Any, scope: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_with(f"health_checks: {{scopes: {{QC: {scope}}}}}")
    assert expected in str(caught.value)


@pytest.mark.parametrize("limit", ["{thresh: 0 degC}", "{thresh: -5 degC}", ""])
def test_a_limit_of_the_daily_range_that_is_no_difference_is_refused(load_with: Any, limit: str) -> None:
    with pytest.raises(ConfigurationError, match=r"temperature_extremely_low of dtr .* expected one in K, such as 0 K"):
        load_with(f"health_checks: {{flags: {{dtr: {{temperature_extremely_low: {limit}}}}}}}")
    config = load_with("health_checks: {flags: {dtr: {temperature_extremely_low: {thresh: -5 K}}}}")
    assert config.flags == {"dtr": {"temperature_extremely_low": {"thresh": "-5 K"}}}


def test_missing_values_of_some_days_are_a_method_with_its_frequency(load_with: Any) -> None:
    config = load_with("health_checks: {missing: {missing_some_but_not_all: {freq: YS}}, raise_on: [missing]}")
    assert config.health_checks.arguments()["missing"] == {"missing_some_but_not_all": {"freq": "YS"}}
