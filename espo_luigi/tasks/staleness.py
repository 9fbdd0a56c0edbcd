"""What a store was made of, as its marker keeps it, and what of that is another thing now."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from espo_luigi.catalog import Match
from espo_luigi.config.schema import fingerprint, short_hash
from espo_luigi.errors import CatalogError
from espo_luigi.store import Marker, read_marker
from espo_luigi.store.marker import FILES_OF
from espo_luigi.tasks.context import RunContext
from espo_luigi.tasks.ports import ZarrInfo

logger = logging.getLogger(__name__)

# The one key of older markers, which do not list what of the configuration they depend on: all of it.
WHOLE = "configuration"
_BESIDE = "+"
# Configurations for which a product made under another one was warned of: once is enough.
_warned_for: set[str] = set()


def made_of(run: RunContext, keys: Iterable[str], raw: Match | None, inputs: Iterable[Marker | None]) -> dict[str, str]:
    """Return the fingerprint of what is read now, by its key, and of all that the inputs were made of themselves.

    Where these differ, as one input is older, it is all of them, which is none that a thing can have now.
    """
    read = {key: _now(run, key) for key in keys}
    if raw is not None:
        read[f"{FILES_OF}{raw.id}"] = _of_files(raw.files)
    found: dict[str, set[str]] = defaultdict(set)
    for recorded in (read, *(_recorded(marker) for marker in inputs if marker is not None)):
        for key, was in recorded.items():
            found[key].update(was.split(_BESIDE))
    return {key: _BESIDE.join(sorted(several)) for key, several in found.items()}


def changes(run: RunContext, marker: Marker, *, files: bool) -> list[str]:
    """Return the keys of what a store was made of and is another thing now; raw files are checked only if wanted."""
    recorded = _recorded(marker).items()
    return [key for key, was in recorded if (files or not key.startswith(FILES_OF)) and _is_other(run, key, was)]


def _is_other(run: RunContext, key: str, was: str) -> bool:
    if _now(run, key) != was and key.startswith(FILES_OF):
        # They may have changed since their last check, before the store was made of them.
        run.fingerprints[key] = _look(run, key)
    return _now(run, key) != was


def _recorded(marker: Marker) -> dict[str, str]:
    return dict(marker.fingerprints) or ({WHOLE: marker.config_hash} if marker.config_hash else {})


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
    return short_hash("\n".join(sorted(map(_described, files))))


def _described(path: Path) -> str:
    with suppress(OSError):
        found = path.stat()
        return f"{path.name} {found.st_size} {int(found.st_mtime)}"
    return f"{path.name} gone"


def made_anew(inputs: Iterable[ZarrInfo], marker: Marker) -> list[str]:
    """Return a name for each task whose store is there and is not the one that the marker's was made of."""
    found = (info for info in inputs if (former := marker.inputs.get(str(info.path))) and _is_new(info.path, former))
    return list(dict.fromkeys(f"input {info.task.label()}" for info in found))


def _is_new(path: Path, former: str) -> bool:
    marker = read_marker(path)
    return marker is not None and marker.id != former


def of_one_piece(markers: Mapping[Path, Marker | None]) -> bool:
    """Whether all outputs are there and were made by the same work: of two works, they may not fit together."""
    if len(markers) == 1:  # the most usual, and an id takes its time
        return None not in markers.values()
    ids = {marker.id if marker is not None else "" for marker in markers.values()}
    if len(ids) > 1 and "" not in ids:
        logger.info("Made anew together, as they were not made together: %s", ", ".join(map(str, markers)))
    return len(ids) == 1 and "" not in ids


def warn(path: Path, changed: list[str], config_hash: str) -> None:
    """Warn, once for a configuration, that a store is stale.

    Its marker may have the hash of this very configuration: it was made of an input that is older.
    """
    if config_hash in _warned_for:
        return
    _warned_for.add(config_hash)
    logger.warning(
        "%s was made of something else than what is there now (changed: %s). It is used as it is, and so is whatever "
        "else is stale: `espo plan` and the end of the run say what, and how it is made again",
        path,
        ", ".join(changed),
    )
