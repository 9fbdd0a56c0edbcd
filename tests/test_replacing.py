"""What stands under a name is replaced or removed only if espo_luigi has made it; nobody else deletes or renames."""

from __future__ import annotations

import ast
import errno
import functools
import itertools
import json
import os
import shutil
import socket
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from generated import examples
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from strangers import NOBODY, as_root, reachable

from espo_luigi import replacing
from espo_luigi.audit.shown import check_suffix
from espo_luigi.catalog.build import check_catalog_replaceable, write_catalog
from espo_luigi.catalog.read import COLUMNS
from espo_luigi.demo.make import ensure_demo
from espo_luigi.errors import CatalogError, EspoError, StoreError
from espo_luigi.publication.catalogue import add_to_catalogue, alone
from espo_luigi.publication.origin import METADATA_NAME, OF_OURS, RELATIONS
from espo_luigi.replacing import (
    by_manifest,
    delete,
    is_hidden_name,
    partial_path,
    room_digits,
    write_manifest,
    write_ours,
)
from espo_luigi.report.make import write_report
from espo_luigi.report.reading import RunView
from espo_luigi.store import Marker, pack, remove, write_page, write_store, write_table
from espo_luigi.store.partials import abandoned_partials
from espo_luigi.store.publish import written_aside
from espo_luigi.store.table import write_checksums

PACKAGE = Path(__file__).parent.parent / "espo_luigi"
WORK = Marker("Work")

# The source: who takes something away from under a name, or writes a file that may be there.

TAKING = {"rmtree", "unlink", "rmdir", "removedirs", "renames", "copytree", "copyfile", "write_text", "write_bytes"}
OF_OS = {"replace", "remove", "rename", "move", "copy"}
STATE = {"write_atomically"}
# Where `rename` is a method of datasets.
OF_DATASETS = {"downscaling", "explorer", "audit", "science", "methods", "catalog", "demo", "tasks"}
ALLOWED = {
    "replacing.py": {"rmtree", "unlink", "rename"},
    # Hidden neighbours, held folders, state files.
    "files.py": {"rmtree", "rmdir", "unlink", "replace"},
    "driver/board.py": {"write_atomically"},
    "store/partials.py": {"rename", "rmtree", "unlink", "write_atomically"},  # hidden names, and inside of them
    "store/link.py": {"copyfile"},  # in a partial
    "store/write.py": {"write_atomically"},  # in a partial
    "methods/dqm/kernel_cache.py": {"rmtree"},  # folders of machine code, by their names
    "report/changes.py": {"write_bytes", "write_text"},  # in a partial
    "report/make.py": {"write_bytes"},  # in a partial
    "explorer/make.py": {"copytree", "write_bytes"},  # in a partial
    "export/folder.py": {"unlink", "write_atomically"},  # the hidden notes, and a hidden neighbour
    # The files of a run's state, in its work folder: orders, results, heartbeats, locks, requests.
    "jobs/": {"unlink", "write_atomically"},
    "jobs/bundles/": {"unlink", "write_atomically"},  # plans and ends of a bundle's members
    "jobs/dask/": {"unlink", "write_atomically", "rmtree"},  # records of workers; the folder of a session's keys
    "jobs/lifecycle/": {"unlink", "write_atomically"},  # records, claims, requests
    "jobs/node/": {"unlink"},  # the job's own heartbeat, results of former runs
    "jobs/schedulers/": {"unlink", "write_atomically"},  # the environment of jobs, a driver's note
    "commands/environment.py": {"write_text", "copy"},  # in a folder of `tempfile`; into a partial
    "commands/cli.py": {"write_text"},  # of click's formatter
}


def calls(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        of = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
        is_a_paths = name == "rename" and path.relative_to(PACKAGE).parts[0] not in OF_DATASETS
        if name in TAKING | STATE or is_a_paths or (of in ("os", "shutil") and name in OF_OS):
            yield name
        if name == "open" and of not in ("zarr", "archive") and _may_empty(node):
            yield "open"


def _may_empty(node: ast.Call) -> bool:
    """Whether `open` empties or changes a file, and is given a name: no descriptor, no new file, no own one."""
    given = (*node.args, *(each.value for each in node.keywords))
    constants = [one.value for one in given if isinstance(one, ast.Constant)]
    modes = {one for one in constants if isinstance(one, str) and set(one) <= set("rwxab+")}
    opened = ast.unparse(node.args[0]) if node.args else ""
    return any(set(mode) & set("wa+") for mode in modes) and not opened.startswith(("open_new(", "open_own("))


def test_nobody_else_deletes_renames_over_something_or_empties_a_file() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        # Of `jobs/` by room: its files are of one kind.
        found.setdefault(f"{path.parent.relative_to(PACKAGE)}/" if name.startswith("jobs/") else name, set()).update(
            calls(path)
        )
    assert {name: names for name, names in found.items() if names} == ALLOWED


def test_the_reading_of_the_source_finds_what_it_looks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    code = ["shutil.rmtree(a)", "p.unlink()", "p.rename(q)", "os.replace(a, b)", "open(p, 'w')", "p.open(mode='r+')"]
    (tmp_path / "a.py").write_text("\n".join(code))
    assert sorted(calls(tmp_path / "a.py")) == ["open", "open", "rename", "replace", "rmtree", "unlink"]


# Each command's outputs, and what may stand at each path that it writes.


def stored(at: Path) -> None:
    write_store(xr.Dataset({"x": ("y", [1.0])}), at, WORK)


def packed(at: Path) -> None:
    stored(source := at.with_name(f"source-of-{at.name}.zarr"))
    pack(source, at)


def reported(at: Path) -> None:
    write_report(RunView((), "abc", "Land", (), (), (1991, 2020), at.parent, at.parent / "run", "local"), at)


def crated(at: Path) -> None:
    text = '{"@graph": ["https://w3id.org/ro/wfrun/process/0.5", {"name": "espo_luigi", "x": 1}]}'
    with alone(at) as write:
        write(at, text, OF_OURS)


def grown(at: Path, maker: str = "espo test") -> None:
    """A folder with a list, as those of figures, of STAC and of the demo."""
    with written_aside(at, judge=by_manifest(maker)) as partial:
        (partial / "items").mkdir(parents=True)
        (partial / "items" / "a.json").write_text("{}")
        write_manifest(partial, maker)


# How an output is made, by its name, with the further names that it takes.
OUTPUTS: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "product.zarr": (stored, ()),
    "product.zarr.zip": (packed, ()),
    "problems.csv": (lambda at: write_table(["a"], [{"a": "1"}], at, None), ("problems.csv.espo.json",)),
    "perfect.html": (lambda at: write_page("<html></html>", at, WORK), ()),
    "thesis.html": (reported, ("thesis-figures", "thesis-improvement.csv")),
    METADATA_NAME: (crated, ()),
    "data.json": (lambda at: write_catalog([], at, "espo catalog"), ("data.csv",)),
    "catalog.json": (lambda at: add_to_catalogue(at, [], at.parent), ("catalog.csv",)),
    "datacite.json": (
        lambda at: write_ours(at, '{\n "datacite": {\n  "relatedIdentifiers": []\n },\n "without_doi": []}', RELATIONS),
        (),
    ),
    "stac": (grown, ()),
}
# Each as the user has it: a folder with a file, an empty file, a text, a link to either, a dangling link, a pipe.
LINKS = ("link to a file", "link to a folder", "dangling link")
KINDS = ("folder", "empty file", "text", *LINKS, "pipe", "inside", "changed")


def put_there(kind: str, path: Path, private: Path) -> None:
    if kind in ("inside", "changed"):
        return
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
        (path / "chapter.txt").write_text("years of work")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind in ("empty file", "text"):
        path.write_text("" if kind == "empty file" else "years of work\n")
    else:
        path.symlink_to(private / {"link to a file": "file", "link to a folder": "folder"}.get(kind, "none"))


def everything(folder: Path) -> dict[str, object]:
    """All that is below a folder: kinds, links' targets, files' bytes."""

    def of(path: Path) -> object:
        if path.is_symlink():
            return "link", os.readlink(path)
        return path.read_bytes() if path.is_file() else ("kind", path.is_dir(), path.is_fifo())

    return {str(path.relative_to(folder)): of(path) for path in sorted(folder.rglob("*"))}


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(sorted(OUTPUTS)),
    which=st.integers(0, 2),
    kind=st.sampled_from(KINDS),
    made_before=st.booleans(),
    can_exchange=st.booleans(),
)
def test_nothing_that_is_not_ours_changes(
    name: str, which: int, kind: str, made_before: bool, can_exchange: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    make, further = OUTPUTS[name]
    folder = tmp_path_factory.mktemp("out")
    private = tmp_path_factory.mktemp("private")
    (private / "folder").mkdir()
    for path in (private / "file", private / "folder" / "letter"):
        path.write_text("private")
    if made_before or kind in ("inside", "changed"):
        make(folder / name)
        make(folder / name)  # its own output is replaced
    target = folder / [name, *further][which % (1 + len(further))]
    # The table that a catalogue names may be empty.
    assume(kind != "empty file" or not made_before or target.name != "catalog.csv")
    put_there(kind, target, private)
    if kind == "inside" and target.is_dir():
        (target / "mine").write_text("years of work")
    elif kind == "changed" and name in ("thesis.html", "problems.csv", "perfect.html") and target.is_file():
        target.write_bytes(target.read_bytes() + b"my note")
    elif kind in ("inside", "changed"):
        return
    mine = everything(target) if target.is_dir() and not target.is_symlink() else everything(folder)[target.name]
    with pytest.MonkeyPatch.context() as patch:
        if not can_exchange:
            patch.setattr(replacing, "renamed", lambda first, second, how: False)
        with pytest.raises(EspoError, match=str(target.name).replace(".", r"\.")):
            make(folder / name)
    now = everything(target) if target.is_dir() and not target.is_symlink() else everything(folder)[target.name]
    assert now == mine
    assert everything(private) == {"file": b"private", "folder": ("kind", True, False), "folder/letter": b"private"}
    assert not [path for path in folder.iterdir() if is_hidden_name(path.name)]


def test_what_somebody_puts_there_after_it_was_judged_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the renaming, with file systems that swap names and those that do not."""
    path = tmp_path / "a.zarr"
    stored(path)
    look = replacing.check_ours

    def judge(descriptor: int) -> str:
        return "" if "espo.json" in os.listdir(descriptor) else "it is a thesis"

    def looked_just_before(at: Path, by: replacing.Judge) -> replacing.Identity | None:
        found = look(at, by)
        if at == path and by is judge:
            put_there("folder", path, tmp_path)
        return found

    monkeypatch.setattr(replacing, "check_ours", looked_just_before)
    for can_exchange in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not can_exchange:
                patch.setattr(replacing, "renamed", lambda first, second, how: False)
            partial = partial_path(path)
            put = functools.partial(replacing.put, partial, path, judge)
            for take in (put, functools.partial(replacing.take_away, path, judge)):
                shutil.rmtree(path)
                stored(path)
                partial.mkdir()
                with pytest.raises(StoreError, match="it is a thesis"):
                    take()
                assert everything(path) == {"chapter.txt": b"years of work"}
                delete(partial)
                assert [entry.name for entry in tmp_path.iterdir()] == ["a.zarr"]


def test_of_a_hidden_name_only_ours_are_deleted_or_found_to_be_left_over(tmp_path: Path) -> None:
    users = [".download.partial", ".Trash.partial", ".a.zarr.partial", ".mail-12-ab.partial", ".x.1.tmp", "a.partial"]
    for name in users:
        (tmp_path / name).mkdir()
        (tmp_path / name / "letter").touch()
        os.utime(tmp_path / name, (0, 0))
        with pytest.raises(StoreError, match="was not deleted: expected a hidden name"):
            delete(tmp_path / name)
    ours = tmp_path / f".a.zarr.{socket.gethostname()}-999999999-{room_digits()}0123456789abcdef.partial"
    ours.mkdir()
    assert list(abandoned_partials(tmp_path)) == [ours]
    remove(tmp_path / "a.zarr")
    write_store(xr.Dataset({"x": ("y", [1.0])}), tmp_path / "a.zarr", WORK)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*users, "a.zarr"])


def test_the_demo_replaces_no_folder_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "chapter.txt").write_text("years of work")
    with pytest.raises(StoreError, match=r"demo was not replaced .* \(it has no espo-files.json of the demonstration"):
        ensure_demo({"folder": str(tmp_path / "demo")})
    assert everything(tmp_path / "demo") == {"chapter.txt": b"years of work"}


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_picture_of_ours_is_known_and_a_users_is_not(suffix: str, tmp_path: Path) -> None:
    from espo_luigi.report.drawings import PICTURE_OF_OURS, new_figure, picture

    path = tmp_path / f"thesis{suffix}"
    figure = new_figure(1, 1)[0]
    for _ in range(2):
        write_ours(path, picture(figure, suffix, 50), PICTURE_OF_OURS)
        check_suffix(path)
    path.unlink()
    figure.savefig(path)
    with pytest.raises(StoreError, match="is not a picture that espo_luigi has drawn"):
        check_suffix(path)


def test_the_json_of_a_catalogue_does_not_take_the_name_of_its_table(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"--out .*table\.csv: expected a JSON file's name, such as table\.json"):
        check_catalog_replaceable(tmp_path / "table.csv")


@pytest.mark.parametrize("table", ["../private.csv", "$HOME/private.csv", "file://{private}", "link.csv", "cat.csv"])
def test_publishing_rewrites_no_table_in_another_folder_and_none_behind_a_link(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (shared := tmp_path / "shared").mkdir()
    private, catalogue = tmp_path / "private.csv", shared / "cat.json"
    private.write_text(f"{','.join(COLUMNS)}\n")
    (shared / "link.csv").symlink_to(private)
    if table == "cat.csv":
        write_catalog([], tmp_path / "others.json", "me")
        catalogue.symlink_to(tmp_path / "others.json")
    else:
        catalogue.write_text(json.dumps({"catalog_file": table.format(private=private)}))
    before = everything(tmp_path)
    with pytest.raises(CatalogError, match=r"publishing follows no link|has its table elsewhere"):
        add_to_catalogue(catalogue, [], tmp_path)
    assert everything(tmp_path) == before


def test_a_report_that_was_killed_between_its_files_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "report.html"
    reported(out)
    for survivors in (1, 2):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("espo_luigi.report.make.written_aside", killed_after(survivors))
            reported(out)
    reported(out)


def killed_after(survivors: int) -> Callable[..., object]:
    """`written_aside` of a process that is killed once it has written so many outputs."""
    numbers = itertools.count()

    def aside(path: Path, judge: replacing.Judge) -> object:
        if next(numbers) >= survivors:
            raise KeyboardInterrupt
        return written_aside(path, judge=judge)

    return aside


def test_what_is_swapped_while_it_is_judged_is_judged_again(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("ours")

    def judge(descriptor: int) -> str:
        content = os.read(descriptor, 99)
        (tmp_path / "b").write_text("years of work")
        os.replace(tmp_path / "b", path)
        return "" if content == b"ours" else "it is a thesis"

    with pytest.raises(StoreError, match=r"it changes while it is looked at|it is a thesis"):
        replacing.check_ours(path, judge)


@pytest.mark.parametrize("can", ["link", "neither"])
def test_without_an_exchange_of_names_nothing_is_lost(
    can: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that appears after the look, and one that appears once ours was moved aside."""
    judge = replacing.by_content(lambda content: content == b"ours", "ours")
    path = tmp_path / "a.json"
    monkeypatch.setattr(replacing, "renamed", lambda first, second, how: False)
    if can == "neither":
        monkeypatch.setattr(os, "link", functools.partial(refuse, errno.EPERM))
        write_ours(path, b"ours", judge)
        write_ours(path, b"ours", judge)
        assert [one.name for one in tmp_path.iterdir()] == ["a.json"]
        return
    link = os.link

    def late(new: Path, name: Path, **options: bool) -> None:
        path.write_text("years of work")
        link(new, name, **options)

    monkeypatch.setattr(os, "link", late)
    for before in (None, "ours"):
        path.unlink(missing_ok=True)
        if before:
            path.write_text(before)
        with pytest.raises(StoreError, match="it is not ours") as told:
            write_ours(path, b"ours", judge)
        assert path.read_text() == "years of work"
    assert Path(str(told.value).rpartition(" ")[2]).read_text() == "ours"


def refuse(number: int, *_: object, **__: object) -> None:
    raise OSError(number, os.strerror(number))


def test_what_cannot_come_back_is_kept_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text("ours")
    look, judge = replacing.check_ours, replacing.by_content(lambda content: content == b"ours", "ours")

    def looked_just_before(at: Path, judge: replacing.Judge) -> replacing.Identity | None:
        found = look(at, judge)
        if at == path:
            path.unlink()
            path.write_text("years of work")
        return found

    swap, calls = replacing.renamed, itertools.count()
    monkeypatch.setattr(replacing, "check_ours", looked_just_before)
    monkeypatch.setattr(replacing, "renamed", lambda *names: swap(*names) if not next(calls) else False)
    with pytest.raises(StoreError, match=r"put something there meanwhile, which is now .*a\.json\.moved-") as told:
        write_ours(path, "ours", judge)
    assert Path(str(told.value).rpartition(" ")[2]).read_text() == "years of work"
    assert len(list(tmp_path.iterdir())) == 2


@as_root
def test_a_colleagues_store_in_a_folder_of_the_group_is_replaced(tmp_path: Path) -> None:
    """A folder that gets another parent must itself be writable; a folder that is moved aside need not be."""
    tmp_path.chmod(0o777)
    stored(tmp_path / "a.zarr")
    with reachable(tmp_path):
        os.seteuid(NOBODY)
        try:
            stored(tmp_path / "a.zarr")
        finally:
            os.seteuid(0)
    assert (tmp_path / "a.zarr").stat().st_uid == NOBODY


@pytest.mark.parametrize("files", ["[1]", '{"a": 1}', '{"a": [[]]}', '{"a": null}', "null", '"ab"', '[["a", {}]]'])
def test_a_damaged_list_of_our_files_is_no_list(files: str, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / replacing.MANIFEST_NAME).write_text(f'{{"made_by": "me", "files": {files}, "beside": {files}}}')
    with pytest.raises(StoreError, match=r"it has no espo-files\.json"):
        replacing.check_ours(tmp_path, by_manifest("me"))
    assert replacing.noted_beside(tmp_path, "a") is None


def test_a_link_in_the_place_of_a_folder_of_ours_is_not_ours(tmp_path: Path) -> None:
    grown(tmp_path / "stac")
    os.rename(tmp_path / "stac" / "items", tmp_path / "items")
    (tmp_path / "stac" / "items").symlink_to(tmp_path / "items")
    with pytest.raises(StoreError, match=r"items in it is not ours \(it is a link\)"):
        grown(tmp_path / "stac")


@as_root
def test_a_folder_that_cannot_be_read_is_not_ours(tmp_path: Path) -> None:
    grown(tmp_path / "stac")
    (tmp_path / "stac" / "items").chmod(0o700)
    with reachable(tmp_path):
        os.seteuid(NOBODY)
        try:
            with pytest.raises(StoreError, match=r"items in it is not ours \(Permission denied\)"):
                replacing.check_ours(tmp_path / "stac", by_manifest("espo test"))
        finally:
            os.seteuid(0)


def test_a_users_page_and_table_beside_it_are_not_a_reports(tmp_path: Path) -> None:
    page, table = tmp_path / "thesis.html", tmp_path / "thesis-improvement.csv"
    table.write_text("domain,simulation,my_notes\n")
    with pytest.raises(StoreError, match=r"improvement\.csv was not replaced"):
        reported(page)
    page.write_text("<!DOCTYPE html>\n<body>\n<p>The page says: <q>Made by espo_luigi on 2026-01-01</q></p>")
    for _ in range(2):
        with pytest.raises(StoreError, match=r"thesis.* was not replaced"):
            reported(page)
        table.unlink(missing_ok=True)


def test_a_catalogue_that_was_killed_before_its_table_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        numbers = itertools.count()

        def killed(*arguments: Any) -> None:
            if next(numbers):
                raise KeyboardInterrupt
            write_ours(*arguments)

        patch.setattr("espo_luigi.catalog.build.write_ours", killed)
        write_catalog([], tmp_path / "data.json", "me")
    write_catalog([], tmp_path / "data.json", "me")
    assert (tmp_path / "data.csv").is_file()
    (tmp_path / "data.json").unlink()
    with pytest.raises(StoreError, match=r"there is no catalogue data\.json that it belongs to, so it may be yours"):
        write_catalog([], tmp_path / "data.json", "me")


@pytest.mark.parametrize("name", ["notes.txt", "x/notes.txt", "x/c/notes.txt", "x/c/7", "NOTES", "mine/zarr.json"])
def test_a_store_with_a_file_of_the_users_is_not_replaced_and_not_removed(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    stored(path)
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_text("years of work")
    for make in (stored, remove):
        with pytest.raises(StoreError, match=r"a\.zarr was not replaced or removed.*(in it is not ours|were written)"):
            make(path)
        assert (path / name).read_text() == "years of work"


def test_a_store_that_lost_a_file_or_has_what_zarr_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    stored(path)
    (path / "x" / "c" / "0").rename(path / "x" / "c" / f"0.{'0' * 32}.partial")
    (path / "x" / ".nfs0000a1").touch()
    stored(path)
    assert sorted(one.name for one in (path / "x").rglob("*")) == ["0", "c", "zarr.json"]


def test_an_archive_with_a_member_of_the_users_is_not_replaced_and_a_cut_one_is(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr.zip"
    packed(path)
    whole = path.read_bytes()
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes.txt", "years of work")
    with pytest.raises(StoreError, match=r"notes\.txt in it is not ours"):
        packed(path)
    path.write_bytes(whole[:-30])
    packed(path)
    assert path.read_bytes()[-30:] == whole[-30:]


@pytest.mark.parametrize("name", ["a.csv", "b.csv", "a.html", "a.sha256"])
def test_a_table_or_page_with_the_users_remarks_is_not_replaced(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    makes: dict[str, Callable[[], None]] = {
        "a.csv": lambda: write_table(["a", "b"], [{"a": "1", "b": "2"}], path, WORK),
        "b.csv": lambda: write_table(["a", "b"], [{"a": "1", "b": "2"}], path, None),
        "a.html": lambda: write_page("<p>\n1\n</p>", path, WORK),
        "a.sha256": lambda: write_checksums({"a": "0" * 64}, path, WORK),
    }
    makes[name]()
    makes[name]()
    first, _, rest = path.read_text().partition("\n")
    path.write_text(remarked := f"{first} my remark\n{rest}")
    with pytest.raises(StoreError, match="it was changed after it was written, as its checksum shows"):
        makes[name]()
    assert path.read_text() == remarked


def test_a_users_table_that_begins_like_ours_is_not_replaced(tmp_path: Path) -> None:
    problems, table, published = tmp_path / "p.csv", tmp_path / "data.csv", tmp_path / "cat.csv"
    problems.write_text("action,problem,variable,file,remark\nkeep,,,,years of work\n")
    with pytest.raises(StoreError, match=r"p\.csv was not replaced"):
        write_table(["a"], [], problems, None)
    write_catalog([], tmp_path / "data.json", "me")
    table.write_text(remarked := f"{table.read_text()},,,my row\n")
    with pytest.raises(StoreError, match=r"data\.csv was not replaced .* \(it has another checksum"):
        write_catalog([], tmp_path / "data.json", "me")
    published.write_text(remarked)
    with pytest.raises(StoreError, match=r"cat\.csv was not replaced .* \(there is no catalogue cat\.json"):
        add_to_catalogue(tmp_path / "cat.json", [], tmp_path)
    assert table.read_text() == published.read_text() == remarked
