"""Data reference syntaxes: those of the package, a user's own, and every way in which a file can be wrong."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from espo_luigi.errors import ConfigurationError, ParameterError
from espo_luigi.export.drs import FIELDS, check_distinct, load_drs, packaged

SIMULATION = {
    **{name: name.replace("_", "-") for name in FIELDS},
    **{"institution": "CCCma", "source": "CanESM5", "experiment": "ssp585", "member": "r1i1p1f1"},
    **{"mip_era": "CMIP6", "activity": "ScenarioMIP", "domain": "NAM", "project": "ESPO-G6-R2", "version": "1.0.0"},
    **{"variable": "tasmax", "driving": ""},
}


@pytest.fixture()
def own(tmp_path: Path) -> Callable[..., str]:
    """A function that writes a DRS with some lines changed, and returns its path."""

    def write(**changes: str) -> str:
        lines = {"folder": "'{source}'", "file": "'{variable}_{dates}.nc'", "years": "4", **changes}
        path = tmp_path / "own.yml"
        path.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
        os.utime(path, ns=(0, len(os.listdir(tmp_path))))
        return str(path)

    return write


def test_espo_g6_names_files_as_ouranos_documents_them() -> None:
    # scripts/ouranos-espo-g6-r2/README.md of CH-Earth/datatool.
    expected = (
        "CCCma/CanESM5/ssp585/r1i1p1f1/day/tasmax/"
        "tasmax_day_ESPO-G6-R2_v1.0.0_CMIP6_ScenarioMIP_NAM_CCCma_CanESM5_ssp585_r1i1p1f1"
    )
    assert str(load_drs("espo-g6").stem(SIMULATION)) == expected


def test_every_drs_of_the_package_is_valid_and_says_what_it_is_for() -> None:
    assert packaged() == ["cordex-adjust", "espo-g6", "espo-v2"]
    assert all(load_drs(name).description for name in packaged())


def test_cordex_adjust_is_no_project_of_cordex_and_renames_variables() -> None:
    drs = load_drs("cordex-adjust")
    given = drs.attributes_for(SIMULATION)["global"]
    assert given["project_id"] == "CORDEX-Adjust"
    assert [drs.name_of(name) for name in ("pr", "tasmax", "orog")] == ["prAdjust", "tasmaxAdjust", "orog"]
    # The DRS's attributes win over the raw simulation's.
    assert drs.missing(SIMULATION, {"project_id": "CORDEX"}) == ["contact", "license"]


@pytest.mark.parametrize("value", ["CORDEX", "cordex", "'{project}'"])
def test_a_drs_that_sets_the_project_of_cordex_is_refused(own: Callable[..., str], value: str) -> None:
    drs = load_drs(own(attributes=f"{{global: {{project_id: {value}}}}}"))
    with pytest.raises(ParameterError, match=r"own\.yml: .*project_id = (?i:cordex) is for results that CORDEX coord"):
        drs.missing({**SIMULATION, "project": "CORDEX"})


def test_the_project_of_raw_cordex_data_is_not_the_products(own: Callable[..., str]) -> None:
    assert load_drs(own(required="[project_id]")).missing(SIMULATION, {"project_id": "CORDEX"}) == ["project_id"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"foldr": "x"}, r"line 4\): unknown key; did you mean folder\?"),
        ({"folder": "'{sorce}'"}, r"no field \{sorce\}; did you mean source\?"),
        ({"folder": "/data"}, "expected a path below the export's folder"),
        ({"folder": "../x"}, "expected a path below the export's folder"),
        ({"folder": "'{source:>9}'"}, "expected only a name in braces"),
        ({"folder": "'{source'"}, "`folder` .*expected '}' before end of string"),
        ({"file": "'{variable}.nc'"}, r"ends in _\{dates\}\.nc"),
        ({"years": "0"}, "greater than or equal to 1"),
        ({"chunks": "{time: 365}"}, "got a chunk along time, expected X and Y"),
        ({"chunks": "{X: 0}"}, "expected a number of points above 0"),
        ({"time": "{units: hours since 1950-01-01}"}, "`time.units`"),
        ({"time": "{stamp: nooon}"}, "did you mean noon"),
        ({"attributes": "{global: {title: '{sourc}'}}"}, r"no field \{sourc\}; did you mean source\?"),
        ({"attributes": "{variable: {comment: 'a {b'}}"}, r"attributes\.variable\.comment: expected '}' before"),
        ({"attributes": "{globl: {title: x}}"}, r"attributes\.globl: did you mean global\?"),
        ({"attributes": "{time: {comment: x}}"}, r"attributes\.time: those of time follow from"),
        ({"required": "{a: b}"}, "`required`"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_line(
    own: Callable[..., str], changes: dict[str, str], expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        load_drs(own(**changes))


def test_an_unknown_name_is_answered_with_the_nearest_and_a_missing_file_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="cordex-adjust, espo-g6, espo-v2; did you mean cordex-adjust"):
        load_drs("cordex-ajust")
    with pytest.raises(ConfigurationError, match=r"none\.yml does not exist"):
        load_drs(str(tmp_path / "none.yml"))


def test_an_edited_file_is_read_again(own: Callable[..., str]) -> None:
    before = load_drs(own(years="4"))
    after = load_drs(own(years="10"))
    assert (before.years, after.years) == (4, 10) and before.hash != after.hash


def test_a_field_without_a_value_names_its_origin(own: Callable[..., str]) -> None:
    drs = load_drs(own(folder="'{institution}'"))
    with pytest.raises(ParameterError, match=r"field \{institution\}, which has no value here; it comes from the sim"):
        drs.stem({**SIMULATION, "institution": ""})


def test_a_name_that_no_file_system_takes_is_refused(own: Callable[..., str]) -> None:
    drs = load_drs(own(file="'{source}_{variable}_{dates}.nc'"))
    with pytest.raises(ParameterError, match="a name of 307 bytes before its dates; expected 200 at most"):
        drs.stem({**SIMULATION, "source": "x" * 300})


@pytest.mark.parametrize(("field", "value"), [("source", "../x"), ("source", ".."), ("driving", "../../x/")])
def test_a_value_of_the_catalogue_leads_out_of_no_folder(own: Callable[..., str], field: str, value: str) -> None:
    drs = load_drs(own(folder="'{driving}{source}'"))
    with pytest.raises(ParameterError, match="cannot be part of a file name"):
        drs.stem({**SIMULATION, field: value})


def test_two_products_of_one_name_are_both_named() -> None:
    drs = load_drs("espo-g6")
    with pytest.raises(
        ParameterError, match=r"2 products would have the same files a/b_\*\.nc: first, second; add the f"
    ):
        check_distinct({"first": Path("a/b"), "second": Path("a/b"), "third": Path("a/c")}, drs)


def test_an_attribute_that_lacks_its_field_is_not_set_and_another_place_may_give_it(own: Callable[..., str]) -> None:
    path = own(required="[institution, title]", attributes="{global: {institution: '{adjusted_by}', title: T}}")
    drs, fields = load_drs(path), {**SIMULATION, "adjusted_by": ""}
    assert drs.attributes_for(fields)["global"] == {"title": "T"}
    assert drs.missing(fields) == ["institution"]
    assert drs.missing(fields, {"institution": " "}) == ["institution"]
    assert drs.missing(fields, {"institution": "Ouranos"}) == []
