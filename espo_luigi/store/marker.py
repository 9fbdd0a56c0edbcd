"""The marker (`espo.json`) says what made a store, an archive, a table or a page; without it, none is complete.

A table's marker is a file beside it, `TABLE.csv.espo.json`. A table is complete if it has the SHA-256 in its marker.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import platform
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from espo_luigi.errors import StoreError
from espo_luigi.files import as_object, open_regular, parse_json, read_bytes, read_text, sha256_of
from espo_luigi.replacing import Judge, by_content, by_digest, is_file

MARKER_NAME = "espo.json"
ROOT_METADATA_NAME = "zarr.json"
ID_LENGTH = 16
REMAKE = "delete it and run the task that makes it again"
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
# In `Marker.fingerprints`, before the id of a raw dataset.
FILES_OF = "files of "
# Before and behind the marker in the last line of checksums or a page.
SUMS_MARK = f"# {MARKER_NAME}: "
PAGE_MARK, PAGE_END = f"<!-- {MARKER_NAME}: ", " -->"
# A page may have megabytes; the longest line with a marker has some thousand inputs.
_LONGEST_LINE = 4 * 2**20
# The names in a store: metadata, arrays, their chunks, and what Zarr or an NFS client left beside them.
_WRITTEN = re.compile(
    rf"{re.escape(MARKER_NAME)}|(?:[^/]+/)?{re.escape(ROOT_METADATA_NAME)}|[^/]+/|[^/]+/c(?:/\d+)*/?"
    r"|(?:.+/)?(?:\.nfs[0-9a-f]+|[^/]+\.[0-9a-f]{32}\.partial)"
)
# PKWARE's APPNOTE, sections 4.3.7 and 4.3.14 to 4.3.16.
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_END = struct.Struct("<4s4H2IH")
_ZIP64_LOCATOR = struct.Struct("<4sIQI")
_ZIP64_END = struct.Struct("<4sQ2H2I4Q")
_SENTINEL = 0xFFFFFFFF
# Of a marker, or of the metadata of a store.
_LARGEST_MEMBER = 64 * 2**20


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@functools.cache
def processor() -> str:
    """Return the name of this machine's processor, which may decide the last bit of a number."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor()


@dataclass(frozen=True)
class Marker:
    """What made a store: the task, its parameters, the software, the inputs and the configuration.

    Parameters
    ----------
    task : str
        The task's family.
    parameters : mapping of str to str
        The task's significant parameters, as their strings.
    versions : mapping of str to str
        Version of each package that can change the numbers.
    inputs : mapping of str to str
        The id of each input's marker, by the input's path; of a raw file its tracking id, or nothing.
    config_hash : str
        Hash of the configuration that was in force.
    fingerprints : mapping of str to str
        Fingerprints of the parts of the configuration and of the raw datasets that the store depends on, directly or
        through its inputs, by the part's key or `FILES_OF` with the dataset's id.
    created : str
        ISO 8601 time; the id does not depend on it.
    processor : str
        The kind of the node's processor, "" in markers of earlier versions; the id does not depend on it.
    """

    task: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    config_hash: str = ""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    created: str = field(default_factory=_now)
    processor: str = field(default_factory=processor)

    @functools.cached_property
    def id(self) -> str:
        """Sixteen hexadecimal digits of the SHA-256 of everything but `created` and `processor`."""
        content = {key: value for key, value in self._as_dict().items() if key not in ("created", "processor")}
        return hashlib.sha256(_CANONICAL.encode(content).encode()).hexdigest()[:ID_LENGTH]

    @property
    def raw(self) -> dict[str, str]:
        """The fingerprints of the raw datasets alone, by the dataset's id."""
        return {key.removeprefix(FILES_OF): was for key, was in self.fingerprints.items() if key.startswith(FILES_OF)}

    def _as_dict(self) -> dict[str, Any]:
        values = ((name, getattr(self, name)) for name in self.__dataclass_fields__)
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values}

    def to_json(self) -> str:
        """Render as the text of the marker file, with the id for readers."""
        return render({**self._as_dict(), "id": self.id})

    @classmethod
    def from_json(cls, text: str) -> Marker:
        """Parse the text of a marker file.

        Raises
        ------
        StoreError
            If the text is not a marker.
        """
        try:
            content = parse_json(text)
            known = {name: content[name] for name in cls.__dataclass_fields__ if name in content}
            if wrong := [name for name, value in known.items() if not _is_kept(value, name in _TABLES)]:
                raise ValueError(f"{', '.join(wrong)} in it is neither a text nor a table of texts, as it should be")
            return cls(**{"processor": "", **known})
        except (ValueError, TypeError, AttributeError) as error:
            raise StoreError(
                f"not a marker ({error}): got {text[:80]!r}, expected the JSON of an {MARKER_NAME}"
            ) from error


_TABLES = ("parameters", "versions", "inputs", "fingerprints")


def _is_kept(value: Any, is_table: bool) -> bool:
    """Whether a value has the type that a marker keeps: a text, or a mapping of texts."""
    if is_table:
        return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())
    return isinstance(value, str)


def render(content: Mapping[str, Any]) -> str:
    """Render the content of a marker file."""
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def is_complete(path: Path) -> bool:
    """Return whether `read_marker` finds a marker."""
    return read_marker(path) is not None


# The markers read so far in a block of `reading_once`, and their tables, of which many markers have the same.
_read: ContextVar[dict[str, Marker | None] | None] = ContextVar("read", default=None)
_tables: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}


@contextlib.contextmanager
def reading_once() -> Iterator[None]:
    """Read each marker once during the block, for a plan, which looks at the state of one moment."""
    token = _read.set({})
    try:
        yield
    finally:
        _read.reset(token)
        _tables.clear()


def read_marker(path: Path) -> Marker | None:
    """Read the marker of a store, archive, table or page; None unless it is complete.

    A store must have root metadata, an archive both ends, and a table the SHA-256 in its marker. That takes well under
    a millisecond; of a table, which is read whole, a millisecond for each 2 MB.
    """
    known, key = _read.get(), str(path)
    if known is None:
        return _read_marker(Path(path))
    if key not in known:
        marker = _read_marker(Path(path))
        if marker is not None:
            tables = (_tables.setdefault(tuple(one.items()), one) for one in (marker.fingerprints, marker.versions))
            marker = replace(marker, fingerprints=next(tables), versions=next(tables))
        known[key] = marker
    return known[key]


def _read_marker(path: Path) -> Marker | None:
    try:
        if path.suffix == ".zip":
            # A few hundred bytes are read, however many members there are. Chunks are checked when they are read.
            with open_regular(path) as file:
                if not _has_whole_directory(file, file.seek(0, os.SEEK_END)):
                    return None
                file.seek(0)
                marker, root = _read_member(file, MARKER_NAME), _read_member(file, ROOT_METADATA_NAME)
                text = None if marker is None or root is None else marker.decode()
        elif path.suffix == ".csv":
            text = read_text(marker_beside(path))
            text = text if sha256_of(path) in _digests(text.encode())[:1] else None
        elif path.suffix in (".html", ".sha256"):
            with open_regular(path) as file:
                text = _marker_line(file)[1]
        else:
            # A plan reads as many markers as there are tasks, and making a path takes its time.
            text = read_text(f"{path}/{MARKER_NAME}")
            text = text if os.stat(f"{path}/{ROOT_METADATA_NAME}").st_size else None
        return None if text is None else Marker.from_json(text)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, UnicodeDecodeError, StoreError):
        return None


def array_bytes(path: Path) -> int:
    """Return the uncompressed bytes of all arrays of a store or an archive, by its metadata.

    Raises `StoreError`, `OSError`, or what JSON's parser raises, if there are none.
    """
    if path.suffix == ".zip":
        with open_regular(path) as file:
            _read_member(file, MARKER_NAME)
            root = (_read_member(file, ROOT_METADATA_NAME) or b"").decode()
    else:
        root = read_text(path / ROOT_METADATA_NAME)
    nodes = parse_json(root)["consolidated_metadata"]["metadata"].values()
    return sum(math.prod(node["shape"]) * _item_bytes(node["data_type"]) for node in nodes if "shape" in node)


def _item_bytes(data_type: Any) -> int:
    """Return the bytes of a value; of a text, a guess."""
    matched = re.fullmatch(r"u?(?:int|float|complex)(\d+)", str(data_type))
    return int(matched[1]) // 8 if matched else 1 if data_type == "bool" else 64


def marked(path: Path, *, inside: bool = True) -> Judge:
    """Return the judge of a store, archive, table or page: ours if it has a marker and nothing that we did not write.

    It may be incomplete. Without `inside`, the marker alone decides, as a plan looks at thousands of outputs.
    """
    if path.suffix == ".zip":
        return _judge(lambda file: _why_no_archive(file, inside))
    if path.suffix == ".csv":
        return _why_no_table(path, inside)
    if path.name.endswith(f".csv.{MARKER_NAME}"):
        return by_content(lambda content: bool(_digests(content)), "the marker of a table")
    if path.suffix in (".html", ".sha256"):
        return _judge(lambda file: _why_no_text(file, inside))
    return functools.partial(_why_no_store, inside=inside)


def _judge(why_not: Callable[[BinaryIO], str]) -> Judge:
    def judge(descriptor: int) -> str:
        if not is_file(descriptor):
            return "it is a folder or a device, expected a file with our marker"
        with open(descriptor, "rb", closefd=False) as file:
            return why_not(file)

    return judge


_NO_MARKER = f"it has no marker ({MARKER_NAME})"
OF_EARLIER_VERSION = "an earlier version of espo_luigi wrote it, with its marker inside"


def _why_no_archive(file: BinaryIO, inside: bool) -> str:
    if _read_member(file, MARKER_NAME) is None:
        return _NO_MARKER
    # Without a directory, it is the beginning of an archive of ours.
    with contextlib.suppress(zipfile.BadZipFile):
        names = zipfile.ZipFile(file).namelist() if inside else []
        return next((_not_ours(name) for name in names if not _WRITTEN.fullmatch(name)), "")
    return ""


def marker_beside(table: Path) -> Path:
    """Return the path of a table's marker."""
    return table.with_name(f"{table.name}.{MARKER_NAME}")


def digests_of(table: Path) -> list[str]:
    """Return the SHA-256 that a table may have if it is ours, its own first; none without a marker beside it."""
    try:
        return _digests(read_bytes(marker_beside(table)))
    except OSError:
        return []


def _digests(marker: bytes) -> list[str]:
    said = as_object(marker) or {}
    sums, others = said.get("sha256"), said.get("former", [])
    own = sums.get("") if isinstance(sums, dict) else None
    return [own, *others] if isinstance(own, str) and isinstance(others, list) else []


def _why_no_table(path: Path, inside: bool) -> Judge:
    def why_not(file: BinaryIO) -> str:
        if known := digests_of(path):
            return _CHANGED if inside and by_digest(known)(file.fileno()) else ""
        if _marker_line(file)[1] is not None:
            return f"{OF_EARLIER_VERSION}: delete it"
        return f"it has no marker beside it ({marker_beside(path).name})"

    return _judge(why_not)


_CHANGED = "it was changed after it was written, as its checksum shows"


def _why_no_text(file: BinaryIO, inside: bool) -> str:
    start, text = _marker_line(file)
    if text is None:
        return _NO_MARKER
    try:
        # Earlier versions noted none.
        digest = parse_json(text).get("sha256", {}).get("") if inside else None
    except (ValueError, AttributeError):
        return _NO_MARKER
    if digest is None:
        return ""
    file.seek(0)
    found = hashlib.sha256()
    while start:
        start -= len(part := file.read(min(start, _LONGEST_LINE)))
        found.update(part)
    return "" if found.hexdigest() == digest else _CHANGED


def _why_no_store(descriptor: int, inside: bool) -> str:
    try:
        opened = os.open(MARKER_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
        with open(opened, encoding="utf-8") as file:
            text = file.read(_LONGEST_LINE) if is_file(opened) else ""
        Marker.from_json(text)
        written = parse_json(text).get("inventory", {}).get("files")
    except (OSError, StoreError, UnicodeDecodeError, AttributeError):
        return f"it is no folder with a marker ({MARKER_NAME})"
    files = 0
    try:
        for place, folders, names, _ in os.fwalk(dir_fd=descriptor, onerror=raise_it) if inside else ():
            for name in (*(f"{folder}/" for folder in folders), *names):
                if not _WRITTEN.fullmatch(within := f"{place}/{name}".removeprefix("./")):
                    return _not_ours(within)
            files += sum(not name.startswith(".nfs") for name in names)
    except OSError as error:
        return f"{error.filename or 'a folder'} in it cannot be read ({error.strerror})"
    if isinstance(written, int) and files > written + 1:
        return f"it has {files - 1} files, and {written} were written"
    return ""


def _not_ours(name: str) -> str:
    return f"{name} in it is not ours: no store of espo_luigi has such a name"


def raise_it(error: OSError) -> None:
    """Have `os.walk` raise its errors."""
    raise error


def _marker_line(file: BinaryIO) -> tuple[int, str | None]:
    """Where the last line of checksums or a page starts, and the text of the marker in it."""
    start = max(0, file.seek(0, 2) - _LONGEST_LINE)
    file.seek(start)
    before, end, line = file.read().rstrip(b"\n").rpartition(b"\n")
    last = line.decode("utf-8", "replace")
    start += len(before + end)
    if last.startswith(PAGE_MARK) and last.endswith(PAGE_END):
        return start, last.removeprefix(PAGE_MARK).removesuffix(PAGE_END)
    return start, last.removeprefix(SUMS_MARK) if last.startswith(SUMS_MARK) else None


def _read_member(file: BinaryIO, name: str) -> bytes | None:
    """The content of the member whose local header starts here, if it has the expected name."""
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size:
        return None
    signature, _, _, method, *_, size, name_length, extra_length = _LOCAL_HEADER.unpack(header)
    if signature != b"PK\x03\x04" or method != zipfile.ZIP_STORED or file.read(name_length) != name.encode():
        return None
    file.seek(extra_length, os.SEEK_CUR)
    # Python would make room for the up to 4 GB that the header may name.
    return file.read(size) if size <= _LARGEST_MEMBER else None


def _has_whole_directory(file: BinaryIO, size: int) -> bool:
    """Whether the file ends in an end record, right behind the directory that this names."""
    if size < _END.size:
        return False
    end = size - _END.size
    file.seek(end)
    signature, *_, directory_size, directory_start, comment_length = _END.unpack(file.read(_END.size))
    if signature != b"PK\x05\x06" or comment_length:
        return False
    file.seek(max(end - _ZIP64_LOCATOR.size, 0))
    if _SENTINEL in (directory_size, directory_start) or file.read(4) == b"PK\x06\x07":
        file.seek(max(end - _ZIP64_LOCATOR.size, 0))
        signature, _, record_start, _ = _ZIP64_LOCATOR.unpack(file.read(_ZIP64_LOCATOR.size))
        if signature != b"PK\x06\x07" or not 0 <= record_start <= end - _ZIP64_END.size:
            return False
        file.seek(record_start)
        *_, directory_size, directory_start = _ZIP64_END.unpack(file.read(_ZIP64_END.size))
        end = record_start
    if directory_start + directory_size != end or directory_start < 0:
        return False
    file.seek(directory_start)
    return file.read(4) == b"PK\x01\x02"
