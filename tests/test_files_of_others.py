"""Files that others wrote are read whole or refused: nobody waits for a pipe, and no file fills the memory."""

from __future__ import annotations

import ast
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from espo_luigi import files
from espo_luigi.catalog import read_catalogue
from espo_luigi.config.health_checks import _as_polygons
from espo_luigi.config.yaml_files import read_yaml
from espo_luigi.errors import EspoError
from espo_luigi.export.folder import Owner
from espo_luigi.publication.catalogue import add_to_catalogue
from espo_luigi.publication.origin import read_dois
from espo_luigi.publication.products import find_exported
from espo_luigi.publication.stac import ITEMS, former_checksums
from espo_luigi.replacing import by_digest, check_ours
from espo_luigi.store.inventory import read_inventory
from espo_luigi.store.marker import read_marker
from espo_luigi.store.table import read_checksums, read_table

PACKAGE = Path(files.__file__).parent
DEEP = "[" * 100_000 + "]" * 100_000


def _polygons(path: Path) -> object:
    class Told:
        context = None

    return _as_polygons(str(path), Told())  # type: ignore[arg-type]


def _table_of(path: Path) -> object:
    catalogue = path.with_name("of-table.json")
    catalogue.write_text(json.dumps({"catalog_file": path.name}))
    return read_catalogue(catalogue)


def _published_beside(path: Path) -> object:
    catalogue = path.with_name("of-table.json")
    catalogue.write_text(json.dumps({"catalog_file": path.name}))
    return add_to_catalogue(catalogue, [], path.parent)


READERS: dict[str, Callable[[Path], object]] = {
    "cat.json": read_catalogue,
    "cat.csv": _table_of,
    "published.csv": _published_beside,
    "area.geojson": _polygons,
    "config.yml": read_yaml,
    "dois.csv": lambda path: read_dois(path, ["A"]),
    "espo-export.json": lambda path: Owner("a", "b", "c").check(path.parent),
    "a.sha256": lambda path: (read_marker(path), read_checksums(path)),
    "b.sha256": lambda path: find_exported(path.parent, {}),
    "a.csv": lambda path: (read_marker(path), read_table(path)),
    "report.html": read_marker,
    "a.zip": read_marker,
    "a.zarr/espo.json": lambda path: (read_marker(path.parent), read_inventory(path.parent)),
    "a.nc": lambda path: check_ours(path, by_digest({"0"})),
    f"{ITEMS}/a.json": lambda path: former_checksums(path.parent.parent),
    "collection.json": files.read_json,
}
# These hold no text that is parsed whole, or count a text that makes no sense as missing.
QUIET = {"report.html", "a.zip", "collection.json", f"{ITEMS}/a.json"}


@pytest.fixture(params=READERS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    path.parent.mkdir(exist_ok=True)
    (path.parent / "zarr.json").write_text("{}")
    return path


def read(path: Path, folder: Path) -> None:
    """Read as the program does: an error of ours or of the disk, or nothing."""
    name = str(path.relative_to(folder))
    if name in QUIET:
        READERS[name](path)
    else:
        with pytest.raises((EspoError, OSError, ValueError)) as caught:
            READERS[name](path)
        assert len(str(caught.value)) < 1000 and type(caught.value) is not RecursionError


def test_a_pipe_a_device_and_a_loop_of_links_are_refused(place: Path, tmp_path: Path) -> None:
    os.mkfifo(place)
    if place.name in {"report.html", "a.zip"}:
        with pytest.raises(OSError, match="it is a pipe, expected a file"):
            read(place, tmp_path)
    else:
        read(place, tmp_path)
    for target in ("/dev/zero", place.name):
        place.unlink()
        place.symlink_to(target)
        if place.name not in {"report.html", "a.zip"}:
            read(place, tmp_path)


def test_a_file_that_is_nested_too_deeply_is_refused_in_few_words(place: Path, tmp_path: Path) -> None:
    place.write_text(DEEP)
    if place.name != "a.nc":
        read(place, tmp_path)


def test_a_file_of_more_bytes_than_any_is_refused_and_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{}")
    os.truncate(path, 10 * 2**40)
    for action in (lambda: files.read_bytes(path, 1000), lambda: files.load_json(path)):
        with pytest.raises(OSError, match=r"it has more than \d+ bytes, expected a smaller file"):
            action()


def test_a_bomb_of_gzip_is_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "cat.csv.gz").write_bytes(gzip.compress(b"a" * 2**20) * 300)
    (tmp_path / "cat.json").write_text('{"catalog_file": "cat.csv.gz"}')
    with pytest.raises(EspoError, match=r"cat\.csv\.gz.*cannot be read.*it has more than 268435456 bytes"):
        read_catalogue(tmp_path / "cat.json")


def test_json_of_a_hundred_levels_is_parsed_and_deeper_json_is_refused() -> None:
    assert files.parse_json("[" * 100 + "]" * 100)
    for text in ("[" * 101 + "]" * 101, '{"a":' * 101 + "1" + "}" * 101, DEEP):
        with pytest.raises(ValueError, match="recursion of lists or mappings is more than 100 deep"):
            files.parse_json(text)
    assert files.parse_json('{"a": ["[[[[", {}]}') == {"a": ["[[[[", {}]}


def test_rooms_that_read_files_of_others_do_so_by_one_function() -> None:
    readers = {"read_text", "read_bytes", "load"}
    found = []
    for room in ("catalog", "publication", "export", "store"):
        for path in sorted((PACKAGE / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and node.attr in readers and isinstance(node.ctx, ast.Load):
                    text = ast.unparse(node)
                    if node.attr != "load" or text == "json.load":
                        found.append(f"{path.relative_to(PACKAGE)}: {text}")
    assert found == ["store/marker.py: Path('/proc/cpuinfo').read_text"]
