"""In a folder that other accounts may write, nothing is written through links, symbolic or hard."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from racing import winners_of
from strangers import AS_STRANGER, NOBODY, as_root, reachable

from espo_luigi import files
from espo_luigi.catalog.build import write_catalog
from espo_luigi.errors import StoreError
from espo_luigi.files import create_whole, write_atomically
from espo_luigi.jobs.forkserver import forked
from espo_luigi.jobs.lock import DriverLock
from espo_luigi.jobs.node.run import _write_beat
from espo_luigi.jobs.order import JobFiles, JobOrder
from espo_luigi.jobs.resources import Resources
from espo_luigi.methods.dqm.kernel_cache import _take_turn
from espo_luigi.publication.catalogue import alone
from espo_luigi.replacing import by_content


def as_nobody(code: str, *arguments: object, cwd: Path | str = "/") -> None:
    """Run Python as a different user of the machine."""
    subprocess.run([*AS_STRANGER, sys.executable, "-c", code, *map(str, arguments)], check=True, cwd=cwd)


def locked(folder: Path) -> None:
    lock = DriverLock(folder)
    lock.acquire()
    lock._age()
    lock.release()


def logged(folder: Path) -> None:
    os.waitpid(forked(folder / "log", os.O_TRUNC, lambda: 0), 0)


def beaten(folder: Path) -> None:
    files = JobFiles(*(folder / name for name in ("order", "result", "beat", "log")))
    _write_beat(JobOrder("id", "Rule", "m", "Rule", {}, {}, Resources(), files), {"a": 1})


def published(folder: Path) -> None:
    with alone(folder / "catalogue.json") as write:
        write(folder / "catalogue.json", "{}", by_content(lambda content: content == b"{}", "the file"))


# Functions that write in a run's or a group's folder, under names that an account could foresee.
WRITERS: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "lock": (locked, (".driver.lock.guard", ".driver.lock.{pid}", ".driver.lock.{pid}.now", "driver.lock")),
    "record": (lambda at: write_atomically(at / "a.json", "new"), (".a.json.{pid}", "a.json")),
    "claim": (lambda at: create_whole(at / "claim", "new"), (".claim.{pid}",)),
    "heartbeat": (beaten, ("beat",)),
    "log": (logged, ("log",)),
    "catalogue": (lambda at: write_catalog([], at / "c.json", "me"), (".c.csv.{pid}", ".c.json.{pid}", "c.csv")),
    "publication": (published, (".catalogue.json.lock", "..catalogue.json.lock.guard", "catalogue.json")),
    "kernel cache": (lambda at: _take_turn(str(at / "kernel.lock")).close(), ("kernel.lock",)),
}
LINK = "import os, sys; [os.symlink(sys.argv[1], name) for name in sys.argv[2:]]"


@as_root
@pytest.mark.parametrize("writer", WRITERS)
def test_a_link_that_another_user_has_put_in_a_groups_folder_empties_no_file(writer: str, tmp_path: Path) -> None:
    write, names = WRITERS[writer]
    precious, shared = tmp_path / "thesis.nc", tmp_path / "shared"
    precious.write_text("years of work")
    before = precious.stat().st_mtime_ns
    shared.mkdir()
    os.chown(shared, NOBODY, NOBODY)
    with reachable(tmp_path):
        as_nobody(LINK, precious, *(shared / name.format(pid=os.getpid()) for name in names))
    with contextlib.suppress(FileExistsError, StoreError):
        write(shared)
    assert precious.read_text() == "years of work"
    assert precious.stat().st_mtime_ns == before


@pytest.mark.parametrize("how", [os.O_TRUNC, os.O_APPEND])
@pytest.mark.parametrize("kind", ["symbolic", "dangling", "hard", "fifo"])
def test_a_name_that_leads_elsewhere_is_taken_for_a_new_file(kind: str, how: int, tmp_path: Path) -> None:
    other, name = tmp_path / "other", tmp_path / "log"
    if kind != "dangling":
        other.write_text("mine")
    if kind == "fifo":
        os.mkfifo(name)
    elif kind == "hard":
        os.link(other, name)
    else:
        name.symlink_to(other)
    with open(files.open_own(name, how), "w") as file:
        file.write("new")
    assert name.read_text() == "new"
    assert not name.is_symlink()
    assert not other.exists() if kind == "dangling" else other.read_text() == "mine"


def test_the_error_of_a_full_disk_names_the_file(tmpfs: Callable[[str, str], Path]) -> None:
    path = tmpfs("disk", "size=16k") / "file"
    with pytest.raises(OSError, match=rf"No space left on device: '{path}'"):
        files.write_atomically(path, "x" * 100_000)
    assert not list(path.parent.iterdir())


def test_a_file_of_ones_own_is_appended_to_emptied_or_only_opened(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for how, expected in ((0, "1old"), (os.O_APPEND, "1old2"), (os.O_TRUNC, "3")):
        if how == 0:
            path.write_text("1old")
            os.close(files.open_own(path))
        else:
            with open(files.open_own(path, how), "w") as file:
                file.write(expected[-1])
        assert path.read_text() == expected


def test_a_text_that_cannot_be_written_leaves_the_old_one_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        files.write_atomically(path, "\ud800")
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]
    assert path.read_text() == "old"


@as_root
@pytest.mark.parametrize("writer", ["catalogue", "publication", "table"])
def test_a_groups_file_that_is_replaced_keeps_its_mode_and_its_group(writer: str, tmp_path: Path) -> None:
    from espo_luigi.store.table import write_table

    group, umask = 54321, os.umask(0o022)
    try:
        writers = {
            "catalogue": ("c.csv", lambda: write_catalog([], tmp_path / "c.json", "me")),
            "publication": ("catalogue.json", lambda: published(tmp_path)),
            "table": ("t.csv", lambda: write_table(["a"], [{"a": "1"}], tmp_path / "t.csv", None)),
        }
        name, write = writers[writer]
        write()
        os.chown(tmp_path / name, -1, group)
        (tmp_path / name).chmod(0o664)
        inode = (tmp_path / name).stat().st_ino
        write()
    finally:
        os.umask(umask)
    found = (tmp_path / name).stat()
    assert found.st_ino != inode
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o664, group)


def test_rights_are_not_kept_of_a_link_nor_with_the_bit_that_changes_the_user(tmp_path: Path) -> None:
    former, link, new = tmp_path / "former", tmp_path / "link", tmp_path / "new"
    former.write_text("")
    former.chmod(0o4755)
    link.symlink_to(former)
    files.write_new(new, "", 0o600)
    files.keep_rights(new, link)
    assert stat.S_IMODE(new.stat().st_mode) == 0o600
    files.keep_rights(new, former)
    assert stat.S_IMODE(new.stat().st_mode) == 0o755


@pytest.mark.parametrize(("mode", "is_kept"), [(0o700, True), (0o755, False), (0o2770, False)])
def test_a_cache_of_machine_code_that_others_reach_is_forgotten_with_a_sentence(
    mode: int, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "kept").mkdir()
    folder.chmod(mode)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    said = files.drop_shared_numba_cache()
    assert ("NUMBA_CACHE_DIR" in os.environ) is is_kept
    assert (said == "") is is_kept and (is_kept or f"NUMBA_CACHE_DIR = {folder} is not used" in said)


def test_a_process_is_known_by_its_start_until_it_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    began, room = files.process_start(process.pid), files.process_room()
    assert room and began and files.lives(process.pid, began, room) is True
    assert files.lives(process.pid, "1", room) is False, "a later process has the number"
    assert files.lives(process.pid, "", room) is None, "it may be a later process"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert files.lives(process.pid, began, room) is False, "a zombie is dead"
    process.communicate()
    assert files.lives(process.pid, began, room) is False
    for elsewhere in ("", None, room[:-1]):
        assert files.lives(process.pid, began, elsewhere) is None, "in another container, or before a reboot"


def test_a_cache_of_machine_code_that_is_not_there_yet_is_made_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "a" / "kept"))
    assert files.drop_shared_numba_cache() == ""
    assert stat.S_IMODE((tmp_path / "a" / "kept").stat().st_mode) == 0o700


@pytest.mark.parametrize("ahead", [240.0, -240.0])
def test_the_age_of_a_file_is_its_servers_whatever_this_hosts_clock_says(
    ahead: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sign"
    path.touch()
    os.utime(path, (time.time() - 1000,) * 2)
    of_server = time.time
    monkeypatch.setattr(time, "time", lambda: of_server() + ahead)
    assert files.age_of(path) == pytest.approx(1000, abs=5)
    assert list(tmp_path.iterdir()) == [path]


@as_root
def test_where_nothing_may_be_written_the_age_of_a_file_is_by_this_hosts_clock(tmp_path: Path) -> None:
    path = tmp_path / "sign"
    path.touch()
    os.utime(path, (time.time() - 1000,) * 2)
    tmp_path.chmod(0o755)
    code = (
        "import pathlib, sys, time\n"
        "from espo_luigi.files import age_of\n"
        "of_server = time.time\n"
        "time.time = lambda: of_server() + 240\n"
        "assert abs(age_of(pathlib.Path('.') / sys.argv[1]) - 1240) < 5\n"
    )
    as_nobody(code, path.name, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == [path]


@as_root
@pytest.mark.parametrize("how", [os.O_TRUNC, os.O_APPEND])
def test_a_file_that_another_account_has_made_first_is_not_written_into(how: int, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("theirs")
    path.chmod(0o666)
    os.chown(path, NOBODY, NOBODY)
    with open(files.open_own(path, how, 0o600), "w") as file:
        file.write("mine")
    assert path.read_text() == "mine"
    assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (os.geteuid(), 0o600)


def test_a_process_whose_start_cannot_be_read_may_live(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise OSError(errno.EMFILE, "too many open files")

    began, room = files.process_start(os.getpid()), files.process_room()
    monkeypatch.setattr(Path, "read_text", refuse)
    assert files.process_start(os.getpid()) == ""
    assert files.lives(os.getpid(), began, room) is None
    assert files.lives(2**22 + 1, "", room) is False


STREAMS = """
import os, sys
from espo_luigi.files import ready_standard_streams
ready_standard_streams()
opened = os.open(os.devnull, os.O_RDONLY)
print("\\u2192 \\udce9", flush=True)
print("\\u2192", file=sys.stderr)
os.write(3, f"{opened > 3} {[stream.name for stream in (sys.stdin, sys.stdout, sys.stderr)]}".encode())
"""


@pytest.mark.parametrize("closed", ["", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_the_null_device_and_open_streams_take_any_text(
    tmp_path: Path, closed: str
) -> None:
    command = f"{sys.executable} -c '{STREAMS}' 3>told >said {closed}"
    environ = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environ, check=True, timeout=60)
    names = ["<stdin>", "<stdout>", "<stderr>"]
    for number, sign in enumerate(("<&-", ">&-", "2>&-")):
        if sign in closed.split():
            names[number] = "/dev/null"
    assert (tmp_path / "told").read_text() == f"True {names}"
    assert (tmp_path / "said").read_text() == ("" if ">&-" in closed.split() else "\\u2192 \\udce9\n")


def test_where_numba_would_find_no_place_a_private_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for cache, is_new in ((tmp_path / "cache", False), (tmp_path / "file", True), (tmp_path / "file", True)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        monkeypatch.chdir("/proc")
        said = files.ensure_numba_cache()
        folder = os.environ.pop("NUMBA_CACHE_DIR", "")
        assert (said != "", folder != "") == (is_new, is_new)
        assert not is_new or (f"machine code is kept in {folder}" in said and os.stat(folder).st_mode & 0o077 == 0)
    # Another account's link.
    Path(folder).rmdir()
    Path(folder).symlink_to(tmp_path / "cache")
    files.ensure_numba_cache()
    assert os.environ.pop("NUMBA_CACHE_DIR") != folder


def test_hdf5_files_are_read_without_locks() -> None:
    environ = {name: value for name, value in os.environ.items() if name != "HDF5_USE_FILE_LOCKING"}
    code = "import os, espo_luigi; print(os.environ['HDF5_USE_FILE_LOCKING'])"
    for more, expected in (({}, "FALSE"), ({"HDF5_USE_FILE_LOCKING": "TRUE"}, "TRUE")):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environ | more, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == expected


def test_of_many_that_want_a_name_one_gets_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    (winner,) = winners_of("create_whole(Path(sys.argv[1]), sys.argv[2])", str(path))
    assert path.read_text() == str(winner)
    assert list(path.parent.iterdir()) == [path]
