"""The marker: the small JSON file inside a store that says what made it, and without which it is not complete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from espo_luigi.errors import InputChangedError, StoreError

MARKER_NAME = "espo.json"
ROOT_METADATA_NAME = "zarr.json"
REMAKE = "delete it and run the task that makes it again"
_ID_LENGTH = 16
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
# In `made_of`, before the id of a raw dataset; what is behind it is a fingerprint of its files.
FILES_OF = "files of "


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


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
    made_of : mapping of str to str
        What of the configuration, and which raw files, this and all that it was made from depend on: a fingerprint of
        each, by its key.
    created : str
        ISO 8601 time; not part of the identity.
    """

    task: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    config_hash: str = ""
    made_of: Mapping[str, str] = field(default_factory=dict)
    created: str = field(default_factory=_now)

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits of the SHA-256 of everything but `created`."""
        content = {key: value for key, value in self._as_dict().items() if key != "created"}
        if not self.made_of:  # as before there was such a field
            del content["made_of"]
        return hashlib.sha256(_CANONICAL.encode(content).encode()).hexdigest()[:_ID_LENGTH]

    @property
    def raw(self) -> dict[str, str]:
        """The raw datasets that this and all that it was made from depend on: a fingerprint of each one's files."""
        return {key.removeprefix(FILES_OF): was for key, was in self.made_of.items() if key.startswith(FILES_OF)}

    def _as_dict(self) -> dict[str, Any]:
        plain = {**self.__dict__}
        return {key: dict(value) if isinstance(value, Mapping) else value for key, value in plain.items()}

    def to_json(self) -> str:
        """Render as the text of the marker file, its id included for readers."""
        return json.dumps({**self._as_dict(), "id": self.id}, indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Marker:
        """Parse the text of a marker file.

        Raises
        ------
        StoreError
            If the text is not a marker.
        """
        try:
            content = json.loads(text)
            known = {name: content[name] for name in cls.__dataclass_fields__ if name in content}
            return cls(**known)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise StoreError(
                f"not a marker ({error}): got {text[:80]!r}, expected the JSON of an {MARKER_NAME}"
            ) from error


@dataclass(frozen=True)
class Inventory:
    """How many files a store directory holds besides its marker, and their size in bytes.

    Zarr reads a missing chunk as fill values and raises nothing; the count shows that a file is missing.
    """

    files: int
    size_bytes: int

    def to_json_fields(self) -> dict[str, int]:
        """The fields under which the inventory lies in the marker file."""
        return asdict(self)


def render_marker_file(marker: Marker, inventory: Inventory, work: str = "") -> str:
    """Render the marker file of a store directory: the marker, the inventory of the directory, and whose work it is."""
    content = {**json.loads(marker.to_json()), "inventory": inventory.to_json_fields()}
    content |= {"work": work} if work else {}
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def work_id(key: str) -> str:
    """Return a short text for all that the values of a store depend on; none for none."""
    return hashlib.sha256(key.encode()).hexdigest()[:_ID_LENGTH] if key else ""


def is_of_work(root: Path, work: str) -> bool:
    """Whether a store directory is whole, and of this work."""
    try:
        said = json.loads((root / MARKER_NAME).read_text(encoding="utf-8"))
        check_inventory(root)
    except (OSError, ValueError, StoreError):
        return False
    return isinstance(said, dict) and said.get("work") == work


def read_inventory(root: Path) -> Inventory | None:
    """Read the inventory from a store directory's marker file, None if it has none. Raises OSError, ValueError."""
    found = json.loads((root / MARKER_NAME).read_text(encoding="utf-8")).get("inventory")
    return Inventory(**found) if found else None


def take_inventory(root: Path) -> Inventory:
    """Count the files under a store's root and their bytes, its marker left out (one `stat` a file)."""
    sizes = [entry.stat().st_size for entry in root.rglob("*") if entry.is_file() and entry != root / MARKER_NAME]
    return Inventory(len(sizes), sum(sizes))


def check_inventory(root: Path) -> None:
    """Check that a store directory has as many files and bytes as its marker says (one `stat` a file).

    Raises
    ------
    StoreError
        If it has not.
    InputChangedError
        If the store is taken away meanwhile.
    """
    try:
        expected = read_inventory(root)
        found = take_inventory(root)
    except FileNotFoundError as error:
        gone = f"{error.filename} is gone"
        raise InputChangedError(f"{root} was replaced or deleted while it was opened: {gone}") from error
    if expected is not None and expected != found:
        raise StoreError(
            f"{root} was changed after it was written: got {found.files} files of {found.size_bytes} bytes, expected "
            f"{expected.files} of {expected.size_bytes}; {REMAKE}"
        )
