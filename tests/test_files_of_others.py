"""Files that others wrote are read whole or refused: nobody waits for a pipe, and no file fills the memory."""

from __future__ import annotations

import ast
import copy
import gzip
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import h5py
import pytest

from espo_luigi import files
from espo_luigi.audit.integrity import _archive, _table
from espo_luigi.catalog import read_catalogue
from espo_luigi.config.health_checks import _as_polygons
from espo_luigi.config.outcomes import WarmingLevelsSection
from espo_luigi.config.yaml_files import read_yaml
from espo_luigi.errors import EspoError
from espo_luigi.export.folder import Owner
from espo_luigi.publication.catalogue import add_to_catalogue
from espo_luigi.publication.origin import read_dois
from espo_luigi.publication.products import find_exported
from espo_luigi.publication.stac import ITEMS, former_checksums
from espo_luigi.replacing import by_digest, check_ours
from espo_luigi.report.changes import _shown_of
from espo_luigi.science.outcomes.indicators import load_indicators
from espo_luigi.store.inventory import digest_of, read_inventory
from espo_luigi.store.marker import read_marker
from espo_luigi.store.table import read_checksums, read_table
from espo_luigi.tasks.ensembles import maker_of
from espo_luigi.tasks.outcomes import warming

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


def _warming(path: Path) -> object:
    sections = {
        "warming_levels": WarmingLevelsSection(tas_src=path),
        "indicators": SimpleNamespace(periods=[("1950", "2100")]),
    }
    return warming(SimpleNamespace(needed=sections.get))  # type: ignore[arg-type]


def _shape_beside(path: Path) -> object:
    path.with_suffix(".shp").write_bytes(b"")
    return _polygons(path.with_suffix(".shp"))


def _shown(path: Path) -> object:
    reader = SimpleNamespace(has=lambda path: True)
    return list(_shown_of(SimpleNamespace(ensemble=None, regions=path), reader))  # type: ignore[arg-type]


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
    "means.nc": _warming,
    "means.csv": _warming,
    "regions.nc": _shown,
    "made.nc": maker_of,
    "area.dbf": _shape_beside,
    "area.cpg": _shape_beside,
    "of_others.csv.espo.json": lambda path: list(_table(path)),
    "b.csv.espo.json": lambda path: read_marker(path.with_name("b.csv")),
    "own.yml": lambda path: load_indicators(str(path)),
}
# These hold no text that is parsed whole, or count a text that makes no sense as missing.
MARKED = {"of_others.csv.espo.json", "b.csv.espo.json", "report.html", "a.zip"}
QUIET = {*MARKED, "collection.json", f"{ITEMS}/a.json", "made.nc"}


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
    if place.name in MARKED:
        with pytest.raises(OSError, match="it is a pipe, expected a file"):
            read(place, tmp_path)
    else:
        read(place, tmp_path)
    for target in ("/dev/zero", place.name):
        place.unlink()
        place.symlink_to(target)
        if place.name not in MARKED:
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


def test_a_digest_waits_for_no_pipe_and_has_an_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(OSError, match=r"it is a (pipe|device), expected a file"):
            digest_of(tmp_path / name)


def test_an_archive_whose_members_share_bytes_or_are_compressed_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("zarr.json", "{}" * 1000)
        whole = archive.infolist()[0]
        for number in range(50):
            archive.filelist.append(copy.copy(whole))
            archive.filelist[-1].filename = str(number)
    assert [problem.partition(": ")[2][:21] for problem in _archive(path)] == ["its members have 1020"]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zarr.json", b"0" * 100_000)
    assert [problem.partition(": ")[2][:23] for problem in _archive(path)] == ["its members have 100000"]


def test_a_file_beside_a_shapefile_is_no_link_to_another_folder(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "private").write_text("secret")
    (tmp_path / "shared" / "area.shp").write_bytes(b"")
    (tmp_path / "shared" / "area.cpg").symlink_to("../private")
    with pytest.raises(ValueError, match=r"link to another folder; expected a file beside area.shp") as caught:
        _polygons(tmp_path / "shared" / "area.shp")
    assert "secret" not in str(caught.value)


def test_a_table_of_temperatures_or_of_regions_has_all_values_in_itself_and_not_too_many(tmp_path: Path) -> None:
    (tmp_path / "private").write_bytes(b"x" * 800)
    with h5py.File(tmp_path / "linked.nc", "w") as file:
        file.create_dataset("tas", 100, "f8", external=[(str(tmp_path / "private"), 0, 800)])
    with h5py.File(tmp_path / "vast.nc", "w") as file:
        file.create_dataset("tas", (100_000, 100_000), "f8", chunks=(1000, 1000))
    for name, told in (("linked.nc", "in .*private, another file"), ("vast.nc", "take 80000000000 bytes; expected a")):
        for reader in (_warming, _shown):
            with pytest.raises(EspoError, match=told):
                reader(tmp_path / name)


# What opens a path without a look at it, by the last part of the name that is called.
OPENERS = {
    *("open_dataset", "open_mfdataset", "open_dataarray", "load_dataset", "load_dataarray", "open_group", "ZipStore"),
    *("File", "is_hdf5", "Dataset", "read_bytes", "read_text", "open", "ZipFile", "read_csv", "fromfile", "memmap"),
    *("loadtxt", "genfromtxt", "read_file", "read_parquet", "open_datatree"),
}
# Ours that are safe, and constructors and methods of other things that have these names.
SAFE = {"xr.Dataset", "open_zarr", "read_bytes", "read_text", "os.open", "self.context.open", "run.open", "self.open"}
IN_MEMORY = ("io.StringIO(", "io.BytesIO(", "open_new(", "open_own(", "files('espo_luigi")
# Modules whose files come with the package, are temporary or ours alone, with what they open.
OWN = {
    "audit/validate.py": "a temporary report",
    "catalog/examine.py": "the store of `zarr_store`, which follows no link out of it",
    "catalog/files.py": "the opener of raw data",
    "commands/docs.py": "pages of the package",
    "commands/init.py": "files of the package, and the folder that is imported",
    "commands/interactive.py": "a script of this process",
    "commands/views.py": "a job's log",
    "demo/make.py": "the demo's record",
    "driver/settings/espo.py": "luigi.cfg",
    "export/netcdf.py": "a partial of this process",
    "files.py": "the opener of files",
    "jobs": "the state folder",
    "machine.py": "files of the kernel",
    "methods/dqm/kernel_cache.py": "the private cache of kernels",
    "science/netcdf.py": "the opener of opened files",
    "science/outcomes/warming.py": "the table of the package",
    "store/archive.py": "a partial of this process",
    "store/blocks.py": "a partial of this process",
    "store/marker.py": "a descriptor of a folder",
    "store/read.py": "the opener of our stores",
    "tasks/cost.py": "a table of the package",
}


def _calls_that_open_a_path(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield calls of openers with anything but a descriptor, or a file that `open_regular` has opened."""
    items = [item for node in ast.walk(tree) if isinstance(node, ast.With) for item in node.items]
    opened = {ast.unparse(i.optional_vars) for i in items if i.optional_vars and "open_regular(" in ast.unparse(i)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in OPENERS:
            given = [*map(ast.unparse, (*node.args[:1], node.func))]
            is_descriptor = "closefd=False" in ast.unparse(node)
            if not (
                is_descriptor
                or given[0] in opened
                or given[-1] in SAFE
                or any(m in g for m in IN_MEMORY for g in given)
            ):
                yield node


def test_no_module_opens_a_path_of_others_but_by_the_openers() -> None:
    found, needed = [], set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        own = name if name in OWN else name.partition("/")[0]
        for call in _calls_that_open_a_path(ast.parse(path.read_text())):
            needed.add(own)
            found += [] if own in OWN else [f"{name}, line {call.lineno}: {ast.unparse(call)}"]
    assert found == []
    assert needed == set(OWN)


@pytest.mark.parametrize(
    "text", ["xr.open_dataset(path)", "h5py.File(path)", "path.read_bytes()", "open(path)", "zipfile.ZipFile(file)"]
)
def test_a_bare_opener_is_seen(text: str) -> None:
    assert len([*_calls_that_open_a_path(ast.parse(text))]) == 1
