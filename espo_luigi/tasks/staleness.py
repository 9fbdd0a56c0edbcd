"""What a store was made of, as its marker keeps it, and what of that is another thing now."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from espo_luigi.catalog import Match
from espo_luigi.config.parts import fingerprint
from espo_luigi.errors import CatalogError
from espo_luigi.store import Marker
from espo_luigi.store.marker import FILES_OF
from espo_luigi.tasks.context import RunContext

# What a marker stands for that was written before markers said what of the configuration they depend on: all of it.
WHOLE = "configuration"


def made_of(run: RunContext, keys: Iterable[str], raw: Match | None, inputs: Iterable[Marker | None]) -> dict[str, str]:
    """Return the fingerprint of what is read now, by its key, and of all that the inputs were made of themselves."""
    found: dict[str, str] = {}
    for marker in inputs:
        found |= _recorded(marker) if marker is not None else {}
    found |= {key: _now(run, key) for key in keys}
    return found if raw is None else found | {f"{FILES_OF}{raw.id}": _of_files(raw.files)}


def changes(run: RunContext, marker: Marker, *, files: bool) -> list[str]:
    """Return the keys of what a store was made of and is another thing now; raw files are looked at only if wanted."""
    recorded = _recorded(marker).items()
    return [key for key, was in recorded if (files or not key.startswith(FILES_OF)) and _now(run, key) != was]


def _recorded(marker: Marker) -> dict[str, str]:
    return dict(marker.made_of) or ({WHOLE: marker.config_hash} if marker.config_hash else {})


def _now(run: RunContext, key: str) -> str:
    if key not in run.fingerprints:
        run.fingerprints[key] = _look(run, key)
    return run.fingerprints[key]


def _look(run: RunContext, key: str) -> str:
    if key == WHOLE:
        return run.config.hash
    if not key.startswith(FILES_OF):
        return fingerprint(run.config, key)
    with suppress(CatalogError):
        wanted, reference = key.removeprefix(FILES_OF), run.reference()
        return _of_files((reference if reference.id == wanted else run.simulation(wanted)).files)
    return ""


def _of_files(files: Iterable[Path]) -> str:
    """A fingerprint of names, sizes and times; folders may move."""
    text = "\n".join(sorted(map(_described, files)))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _described(path: Path) -> str:
    with suppress(OSError):
        found = path.stat()
        return f"{path.name} {found.st_size} {int(found.st_mtime)}"
    return f"{path.name} gone"
