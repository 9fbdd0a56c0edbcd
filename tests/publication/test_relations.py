"""The relations of products to their inputs, as the packages of Zenodo and DataCite judge them."""

import json
from pathlib import Path

import exported_products as made
import pytest
import xarray as xr

from espo_luigi.errors import CatalogError
from espo_luigi.publication.origin import Identifier, identifier_of, raw_datasets, read_dois, relations
from espo_luigi.publication.products import Product, find_products

IDS = [
    f"CMIP6_ScenarioMIP_X_{model}_{experiment}_r1i1p1f1_global" for model in "AB" for experiment in ("ssp126", "ssp585")
]


@pytest.fixture()
def products(tmp_path: Path) -> list[Product]:
    """A product of a simulation, and the table of its raw files."""
    made.publish(xr.Dataset({"a": 1.0}), tmp_path / "day.zarr")
    made.look_at_raw_files(tmp_path)
    return find_products(tmp_path)


def table(folder: Path, *lines: str, columns: str = "pattern,doi") -> Path:
    path = folder / "dois.csv"
    path.write_text("\n".join([columns, *lines]) + "\n")
    return path


def test_zenodo_and_datacite_take_handles_and_dois(products: list[Product]) -> None:
    idutils, datacite = pytest.importorskip("idutils"), pytest.importorskip("datacite.schema45")
    found = relations(products, {made.SIM: "10.22033/ESGF/CMIP6.1234"}).document()
    assert [
        (one["relatedIdentifierType"], one["relatedIdentifier"]) for one in found["datacite"]["relatedIdentifiers"]
    ] == [
        ("DOI", "10.22033/ESGF/CMIP6.1234"),
        ("Handle", "21.14100/0f2b8e0e-1b2c-4c1d-9c0e-0123456789ab"),
        ("Handle", "21.14100/1f2b8e0e-1b2c-4c1d-9c0e-0123456789ab"),
        ("URN", "urn:uuid:2f2b8e0e-1b2c-4c1d-9c0e-0123456789ab"),
    ]
    whole = {
        "doi": "10.5281/zenodo.1",
        "creators": [{"name": "A"}],
        "titles": [{"title": "T"}],
        "publisher": {"name": "P"},
        "publicationYear": "2026",
        "types": {"resourceTypeGeneral": "Dataset", "resourceType": "Dataset"},
        "schemaVersion": "http://datacite.org/schema/kernel-4",
    }
    datacite.validator.validate(whole | found["datacite"])
    assert {one["relationType"] for one in found["datacite"]["relatedIdentifiers"]} == {"IsDerivedFrom"}
    wrong = [{**found["datacite"]["relatedIdentifiers"][0], "relatedIdentifierType": "Hdl"}]
    assert not datacite.validate(whole | {"relatedIdentifiers": wrong})
    kinds = [idutils.detect_identifier_schemes(one["identifier"]) for one in found["zenodo"]["related_identifiers"]]
    assert [one[0] for one in kinds] == ["doi", "handle", "handle", "urn"]
    assert {one["relation"] for one in found["zenodo"]["related_identifiers"]} == {"isDerivedFrom"}


def test_what_has_no_doi_no_tracking_id_or_no_table_is_listed(products: list[Product]) -> None:
    found = relations(products, {})
    assert (found.without_doi, found.without_tracking_id, found.unknown) == ((made.SIM,), ("nameless.nc",), ())
    assert json.loads(json.dumps(found.document()))["without_doi"] == [made.SIM]
    without = relations([one for one in products if one.is_data], {made.SIM: "10.22033/ESGF/CMIP6.1234"})
    assert (without.without_doi, without.unknown) == ((), (made.SIM,))
    assert without.identifiers == (Identifier("DOI", "10.22033/ESGF/CMIP6.1234"),)
    assert raw_datasets(products) == {made.SIM}


@pytest.mark.parametrize(
    ("text", "kind", "url"),
    [
        ("hdl:21.14100/a-b", "Handle", "https://hdl.handle.net/21.14100/a-b"),
        ("https://hdl.handle.net/21.14107/a-b", "Handle", "https://hdl.handle.net/21.14107/a-b"),
        (" hdl:21.14103/a-b\n", "Handle", "https://hdl.handle.net/21.14103/a-b"),
        ("2F2b8e0e-1b2c-4c1d-9c0e-0123456789AB", "URN", "urn:uuid:2f2b8e0e-1b2c-4c1d-9c0e-0123456789ab"),
    ],
)
def test_tracking_ids_of_all_generations_are_identifiers(text: str, kind: str, url: str) -> None:
    found = identifier_of(text)
    assert found is not None and (found.kind, found.url) == (kind, url)


@pytest.mark.parametrize("text", ["", "none", "hdl:", "21.14100", "my file 3"])
def test_other_texts_are_none(text: str) -> None:
    assert identifier_of(text) is None


def test_a_pattern_gives_its_doi_to_all_ids_that_fit(tmp_path: Path) -> None:
    lines = ("*_A_*,https://doi.org/10.22033/ESGF/CMIP6.1,from DKRZ", "*_B_ssp126*, doi:10.22033/ESGF/CMIP6.2 ,")
    assert read_dois(table(tmp_path, *lines, columns="pattern, doi,note"), IDS) == {
        IDS[0]: "10.22033/ESGF/CMIP6.1",
        IDS[1]: "10.22033/ESGF/CMIP6.1",
        IDS[2]: "10.22033/ESGF/CMIP6.2",
    }


def test_the_same_doi_twice_is_no_contradiction(tmp_path: Path) -> None:
    lines = ("*_A_*,10.22033/esgf/cmip6.1", "*ssp126*,10.22033/ESGF/CMIP6.1")
    assert set(read_dois(table(tmp_path, *lines), IDS)) == set(IDS[:3])


@pytest.mark.parametrize(
    ("columns", "lines", "said"),
    [
        ("pattern,url", ["*,10.22033/a"], r"the column doi is missing.*got pattern, url"),
        ("", [], r"cannot be read: No columns.*expected a CSV file with pattern and doi"),
        ("pattern,doi", ["*,22033/a"], r"line 2: '22033/a' is not a DOI"),
        ("pattern,doi", ["*_A_*,10.22033/a", "*ssp126*,10.22033/b"], r"line 3: .*_A_ssp126_.* second DOI.*line 2"),
        (
            "pattern,doi",
            ["CMIP6_ScenarioMIP_X_A_ssp126_r1i1p1f1,10.22033/a"],
            r"fits none of the 4.*did you mean CMIP6",
        ),
        ("pattern,doi", ["*_a_*,10.22033/a"], r"line 2: the pattern '\*_a_\*' fits none"),
        ("pattern,doi", ['"*,10.22033/a'], r"cannot be read"),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(columns: str, lines: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=said):
        read_dois(table(tmp_path, *lines, columns=columns), IDS)


def test_a_table_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"no\.csv cannot be read"):
        read_dois(tmp_path / "no.csv", IDS)
