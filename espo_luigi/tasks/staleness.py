"""The state of a task's outputs, and what of their material has changed since they were made.

| state | method | true if |
|---|---|---|
| complete | `complete` | this task made all decisive outputs, together; with ``rerun = stale``, not stale either |
| stale | `stale` | settings (the keys that the task reads), raw files or inputs have changed since |
| outdated | `stale(files=False)` | settings have changed since; raw files and inputs do not count |
| without temporary stores | `has_no_temporary` | no temporary output exists, as after `delete_temporary` |

The decisive outputs are the kept outputs, or all outputs if none is kept. So a task stays complete when its temporary
stores are deleted. The outputs' marker shows changes: `fingerprints` has those of configuration keys and raw
datasets, the inputs' included; `inputs` has the ids of the inputs' markers.
"""

from __future__ import annotations

import functools
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from espo_luigi.catalog import Match
from espo_luigi.config.schema import fingerprint, short_hash
from espo_luigi.errors import CatalogError, ConfigurationError
from espo_luigi.export.drs import load_drs
from espo_luigi.store import Marker, read_marker
from espo_luigi.store.marker import FILES_OF
from espo_luigi.tasks.context import RunContext
from espo_luigi.tasks.partition import POOL_KEY, PRODUCTION_KEY, members
from espo_luigi.tasks.ports import ZarrInfo

logger = logging.getLogger(__name__)

# The key of markers without fingerprints, which depend on the whole configuration.
WHOLE = "configuration"
# Before the name or the path of a DRS, by which products are exported.
DRS_KEY = "DRS "
# The key of the usual settings' name, which is its own fingerprint; and the keys of how variables are adjusted.
USUAL_KEY = "usual"
_ADJUSTED = "biasadjust.variables."
# The key under which older markers have the domain, and today's.
_FORMER_DOMAIN, _DOMAIN = "custom.amno_region", "domain"
# Joins the different fingerprints that inputs have for a key.
_JOINED_BY = "+"
# Configurations for which a stale product was reported.
_warned_for: set[str] = set()


def fingerprints_of(
    run: RunContext, keys: Iterable[str], raw: Match | None, inputs: Iterable[Marker | None]
) -> dict[str, str]:
    """Return the fingerprint of everything that is read now, by its key, and of everything the inputs were made of.

    If inputs disagree, because one is older, their fingerprints are joined. The joined value matches no current one, so
    the store counts as stale.
    """
    read = {key: _now(run, key) for key in keys}
    if raw is not None:
        read[f"{FILES_OF}{raw.id}"] = _of_files(raw)
    found: dict[str, set[str]] = defaultdict(set)
    for recorded in (read, *(_recorded(marker) for marker in inputs if marker is not None)):
        for key, was in recorded.items():
            found[key].update(was.split(_JOINED_BY))
    return {key: _JOINED_BY.join(sorted(fingerprints)) for key, fingerprints in found.items()}


def changes(
    run: RunContext, marker: Marker, reads: Callable[[], Iterable[str]], inputs: Iterable[ZarrInfo]
) -> list[str]:
    """Return everything that changed since a task's outputs were made: settings, raw datasets, remade inputs.

    `reads` returns the keys, with wildcards, that the task and those before it read.
    """
    recorded, keys = _recorded(marker), list[str]()
    if not recorded.items() <= run.fingerprints.items():  # of most tasks, all is known and the same
        keys = [_in_words(run, key, was) for key, was in recorded.items() if _changed(run, key, was)]
    keys += _unknown(run, marker, reads)
    remade = (info for info in inputs if is_material(info) and _was_remade(info, marker))
    return keys + list(dict.fromkeys(f"input {info.task.label()}" for info in remade))


def changed_settings(run: RunContext, marker: Marker, reads: Callable[[], Iterable[str]]) -> list[str]:
    """Return the keys of the configuration that changed since a store was made; looks at no file."""
    recorded, changed = _recorded(marker), list[tuple[str, str]]()
    if not recorded.items() <= run.fingerprints.items():
        settings = ((key, was) for key, was in recorded.items() if not key.startswith(FILES_OF))
        changed = [(key, was) for key, was in settings if _now(run, key) != was]
    return [_in_words(run, key, was) for key, was in changed] + _unknown(run, marker, reads)


def _unknown(run: RunContext, marker: Marker, reads: Callable[[], Iterable[str]]) -> list[str]:
    """Return the keys that are given and read now, and that the version which made the marker did not have."""
    recorded = _recorded(marker)
    if WHOLE in recorded or not run.given_keys:
        return []
    unknown = _not_among(frozenset(recorded), tuple(run.given_keys))
    if not unknown:
        return []
    unread = _not_among(frozenset(reads()), unknown)
    return [key for key in unknown if key not in unread]


@functools.lru_cache(maxsize=4096)  # of many tasks, the keys are the same
def _not_among(keys: frozenset[str], given: tuple[str, ...]) -> tuple[str, ...]:
    """Return those given that are neither among keys with wildcards, nor parts of any, nor have any as a part."""
    parts = [re.split(r"\.(?=\{|\*)", key)[0].split(".") for key in keys]

    def is_among(of_key: Sequence[str]) -> bool:
        return any(all(one == other for one, other in zip(of_key, names, strict=False)) for names in parts)

    return tuple(key for key in given if not is_among(key.split(".")))


def _in_words(run: RunContext, key: str, was: str) -> str:
    """Return a changed key as people read it: of a pool, its members that enter and leave."""
    if not key.startswith(POOL_KEY):
        return key
    before, now = set(was.split(",")), set(_now(run, key).split(",")) - {""}
    moves = {"enters": sorted(now - before), "leaves": sorted(before - now)}
    listed = "; ".join(f"{', '.join(ids)} {move}" for move, ids in moves.items() if ids)
    return f"{key} ({listed})" if listed else f"{key} (its order)"


def require_agreement(
    run: RunContext, made: Iterable[tuple[Path, Marker | None]], names: Iterable[str] = (), *, and_now: bool = False
) -> None:
    """Raise `ConfigurationError` if stores were adjusted by settings that differ, or with `and_now` by others than now.

    With `names` below `biasadjust.variables`, only their settings count.
    """
    prefixes = tuple(f"{_ADJUSTED}{name}." for name in names) or _ADJUSTED
    first: dict[str, tuple[str, str]] = {}
    for path, marker in made:
        for key, was in _recorded(marker).items() if marker is not None else ():
            if key != USUAL_KEY and (not key.startswith(prefixes) or key.endswith("*")):
                continue
            known = (_now(run, key), "the configuration") if and_now else (was, str(path))
            before, where = first.setdefault(key, known)
            if before != was or _JOINED_BY in was:
                begun = f"this run was begun by other usual settings than `usual: {run.config.usual}`"
                raise ConfigurationError(
                    f"{begun if and_now else 'what was adjusted in two ways cannot be joined'}: `{key}` of {path} is "
                    f"not that of {where}. Give the settings that made it (their name in `usual`, or all of them), "
                    "go on with the version that made it, make it again (`[espo] rerun = stale`), or take new folders."
                )


def is_material(info: ZarrInfo) -> bool:
    """Return True if outputs are made of this input; a check of raw files, for instance, is only waited for."""
    return getattr(info.task, "is_material", True)


def _changed(run: RunContext, key: str, was: str) -> bool:
    if _now(run, key) != was and key.startswith(FILES_OF):
        # The files may have changed after the last look at them, and the store was made of the new files.
        run.fingerprints[key] = _look(run, key)
    return _now(run, key) != was


def _recorded(marker: Marker) -> Mapping[str, str]:
    return marker.fingerprints or ({WHOLE: marker.config_hash} if marker.config_hash else {})


def _now(run: RunContext, key: str) -> str:
    if key not in run.fingerprints:
        run.fingerprints[key] = _look(run, key)
    return run.fingerprints[key]


def _look(run: RunContext, key: str) -> str:
    if key == WHOLE:
        return run.config.hash
    if key == USUAL_KEY:
        return run.config.usual
    if key.startswith(POOL_KEY):
        return ",".join(members(run, key.removeprefix(POOL_KEY)))
    if key == PRODUCTION_KEY:
        return run.config.production or run.production.name
    if key.startswith(DRS_KEY):
        return load_drs(key.removeprefix(DRS_KEY)).hash
    if not key.startswith(FILES_OF):
        is_former = key == _FORMER_DOMAIN or key.startswith(f"{_FORMER_DOMAIN}.")
        return fingerprint(run.config, _DOMAIN + key.removeprefix(_FORMER_DOMAIN) if is_former else key)
    wanted = key.removeprefix(FILES_OF)
    with suppress(CatalogError):
        if run.reference().id == wanted:
            return _of_files(run.reference())
    with suppress(CatalogError):  # a reference that is lost says nothing of a simulation
        return _of_files(run.simulation(wanted))
    return ""


def _of_files(raw: Match) -> str:
    """Return a fingerprint of names, sizes, times and presets; moving the folder does not change it."""
    presets = sorted(preset.model_dump_json() for preset in raw.presets)
    return short_hash("\n".join([*sorted(map(_described, raw.files)), *presets]))


def _described(path: Path) -> str:
    with suppress(OSError):
        found = path.stat()
        return f"{path.name} {found.st_size} {int(found.st_mtime)}"
    return f"{path.name} gone"


def _was_remade(info: ZarrInfo, marker: Marker) -> bool:
    """Return True if an input exists and has another id than when the marker's store was made."""
    former = marker.inputs.get(str(info.path))
    found = read_marker(info.path) if former else None
    return found is not None and found.id != former


def made_together(markers: Mapping[Path, Marker | None]) -> bool:
    """Return True if all outputs exist and one job made them all: outputs of two jobs may not fit together."""
    if len(markers) == 1:  # the usual case; an id takes time
        return None not in markers.values()
    ids = {marker.id if marker is not None else "" for marker in markers.values()}
    if len(ids) > 1 and "" not in ids:
        logger.info("Made anew together, as they were not made together: %s", ", ".join(map(str, markers)))
    return len(ids) == 1 and "" not in ids


def warn(path: Path, changed: list[str], config_hash: str) -> None:
    """Warn, once for a configuration, that a store is stale.

    The store's marker may have the hash of this very configuration, if the store was made of an older input.
    """
    if config_hash in _warned_for:
        return
    _warned_for.add(config_hash)
    logger.warning(
        "%s was made of something else than what is there now (changed: %s). It is used as it is, like all stale "
        "products: `espo plan` and the end of the run list them, and say how to make them again",
        path,
        ", ".join(changed),
    )
