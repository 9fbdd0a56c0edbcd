"""The products that each module of tests about `espo validate` has made."""

import shutil
from pathlib import Path

import pytest

from espo_luigi.publication.catalogue import add_to_catalogue
from espo_luigi.publication.products import find_products


@pytest.fixture()
def final(made: Path, tmp_path: Path) -> Path:
    """The products, which a test may damage, and their catalogue."""
    folder = shutil.copytree(made, tmp_path / "final")
    add_to_catalogue(folder / "catalog.json", find_products(folder), folder)
    return folder
