"""From files to a validated, frozen configuration."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from espo_luigi.config.cross_checks import ORIGINALS, WHO_ADJUSTS, checked, is_of
from espo_luigi.config.dialects import (
    COPIED,
    DETAILS,
    OTHER_SECTIONS,
    Content,
    Written,
    as_written,
    drop_without_effect,
    fill_in,
    mappings,
    modernise,
    null_older_keys,
    owned,
    reference_source,
    translate,
)
from espo_luigi.config.messages import explain, place_of
from espo_luigi.config.schema import RunConfig
from espo_luigi.config.usual import give_usual_settings, method_of
from espo_luigi.config.yaml_files import KeyPath, YamlFile, merge, read_yaml
from espo_luigi.errors import ALIKE, ConfigurationError, nearest, unknown
from espo_luigi.fields import find_file, find_in
from espo_luigi.methods.base import DEFAULT_METHOD, AdjustingSection, TrainingSection
from espo_luigi.methods.usual import USUAL_METHODS

logger = logging.getLogger(__name__)
_MOST_BASES = 20
_VARIABLES = "biasadjust.variables"

SHIPPED = Path(__file__).parents[1] / "commands" / "starts"
SECTIONS = (*(field.alias or name for name, field in RunConfig.model_fields.items()), *OTHER_SECTIONS)


def load(files: Sequence[str | os.PathLike[str]] | str | os.PathLike[str]) -> RunConfig:
    """Read YAML files, merge them in order, and validate the result once.

    Mappings are merged key by key; for anything else, the later file wins. A file's `base` names another that comes
    before it: beside it, or one of those that the package holds, such as espo-g6/config.yml. `null` for a section or a
    key takes away what the files before it give. Files of ESPO-G 2024 and of ESPO v2 are translated. Environment
    variables and ``~`` in paths are expanded; relative paths start from the working folder, those of files to be read
    also from the folders of the configuration files and the folders above.

    Parameters
    ----------
    files : sequence of paths
        The YAML files, in the order in which they are merged.

    Returns
    -------
    RunConfig
        Frozen values; `.hash` identifies them.

    Raises
    ------
    ConfigurationError
        A file cannot be read, or a key or a value is not allowed; the message names the key's full path and place.
    """
    try:
        paths = [find_file(str(file), ()) for file in ([files] if isinstance(files, str | os.PathLike) else files)]
    except ValueError as error:
        raise ConfigurationError(f"From the configuration files {files!r}: {error}.") from error
    if not paths:
        raise ConfigurationError("No configuration file was given. Give one YAML file or more.")
    content, written, places, paths = merged(paths)
    folders = folders_of(paths)
    try:
        translate(content, written)
        drop_without_effect(content)
        with_usual = give_usual_settings(content)
    except ConfigurationError as error:
        raise ConfigurationError(_as_given(str(error), written, places)) from error
    fill_in(content)
    _read_properties(content, folders)
    try:
        config = RunConfig.model_validate(content, context={"folders": folders})
    except ValidationError as error:
        explained = explain(error, RunConfig, written, places)
        raise ConfigurationError(f"From {', '.join(str(path) for path in paths)}: {explained}") from error
    try:
        config._written, config._files, config._with_usual = written, tuple(paths), tuple(with_usual)
        return checked(config)
    except ConfigurationError as error:
        raise ConfigurationError(_as_given(str(error), written, places)) from error


def folders_of(files: Iterable[Path]) -> tuple[Path, ...]:
    """Return the folders in which files are looked for that configuration files name.

    ESPO-G's files lie in the project's folder `config`, and name files as `config/NAME.yml`: hence the parent.
    """
    return tuple(dict.fromkeys(folder for file in files for folder in (file.parent, file.parent.parent)))


def _as_given(text: str, written: Written, places: Mapping[KeyPath, str]) -> str:
    """Return a message with keys as the user has written them, after the place of the first."""
    keys: list[KeyPath] = []

    def own(match: re.Match[str]) -> str:
        keys.append(as_written(tuple(match[0].split(".")), written))
        return ".".join(keys[-1])

    text = re.sub(r"(?<=`)[\w.-]+(?=`)", own, text)
    place = place_of(keys[0], places) if keys else ""
    return f"{place}: {text}" if place else text


def merged(paths: Iterable[Path]) -> tuple[Content, dict[KeyPath, KeyPath], Mapping[KeyPath, str], list[Path]]:
    """Return the content of files and of their bases, where moved keys were written, places of keys, and all files."""
    content: Content = {}
    written: dict[KeyPath, KeyPath] = {}
    places: dict[KeyPath, str] = {}
    read: dict[Path, YamlFile] = {}
    for path in paths:
        _read_with_base(path, read)
    for file in read.values():
        path = file.path
        own = _known_sections(owned({key: value for key, value in file.content.items() if key != "base"}), path)
        own = {section: value for section, value in own.items() if section not in file.empty}
        moved = modernise(own)
        null_older_keys(own, content)
        before, source = reference_source(written), reference_source(moved)
        if before and source and source != before:
            raise ConfigurationError(
                f"{path}: `extraction.reference.{source}`: a file before it gives `extraction.reference.{before}`, and "
                "a run has one reference. Name the same source in both files."
            )
        _refuse_inherited_makers(own, content, path)
        _drop_settings_of_other_methods(own, content)
        content = merge(content, own)
        written = {key: old for key, old in written.items() if key not in file.places}
        written |= moved
        places = {path: place for path, place in places.items() if as_written(path, moved) not in file.places}
        places |= file.places
    content = {section: value for section, value in content.items() if value is not None}
    return content, {**written, **COPIED}, places, [file.path for file in read.values()]


def _refuse_inherited_makers(own: Content, before: Content, path: Path) -> None:
    """Raise if a file with a project or a method of its own leaves it to an original's file to say who adjusts."""
    section = own.get("biasadjust", {})
    inherited, adjusted = _variables(before), _variables(own)
    if section is None or (isinstance(section, dict) and section.get("variables", {}) is None):
        return
    names = [str(project.get("name") or "") for one in (own, before) for _, project in mappings(one, "project")]
    for name, how in inherited.items():
        given, original = _adjusting(adjusted.get(name, {})), _adjusting(how)
        if given is None or original is None or original.get(WHO_ADJUSTS[1]) not in ORIGINALS:
            continue
        renamed = len(names) == 2 and names[0] and not is_of(names[0], original[WHO_ADJUSTS[1]])
        changed = "project.name" if renamed else f"{_VARIABLES}.{name}"
        is_other_method = method_of(adjusted.get(name)) not in ("", method_of(how) or DEFAULT_METHOD)
        inherits = [key for key in WHO_ADJUSTS if original.get(key) and key not in given]
        if inherits and (renamed or is_other_method):
            raise ConfigurationError(
                f"{path}: `{_VARIABLES}.{name}.adjusting_args.{inherits[0]}`: got {original[inherits[0]]!r} of a file "
                f"before this one, which has its own `{changed}`: products would name another's project. "
                f"Give {' and '.join(WHO_ADJUSTS)} here, or null."
            )


def _drop_settings_of_other_methods(own: Content, before: Content) -> None:
    """Take settings of a variable's method away where a later file names another, whose usual settings it takes.

    Those of every method stay: periods, and who adjusts.
    """
    adjusted, inherited = _variables(own), _variables(before)
    for name in adjusted.keys() & inherited.keys():
        how, old = adjusted[name], inherited[name]
        if how and old and not how.get("variables") and not old.get("variables"):
            if method_of(how) == (method_of(old) or DEFAULT_METHOD):
                continue
            if not how.get("method") and method_of(how) not in USUAL_METHODS:
                continue
            for section, model in (("training_args", TrainingSection), ("adjusting_args", AdjustingSection)):
                if isinstance(given := old.get(section), dict):
                    old[section] = {key: given[key] for key in given if key in model.model_fields}


def _variables(content: Content) -> dict[str, Content | None]:
    """Return the mappings, or null, that a file gives for each variable's adjustment."""
    ((_, adjusted),) = mappings(content, _VARIABLES) or [((), {})]
    return {name: how for name, how in adjusted.items() if how is None or isinstance(how, dict)}


def _adjusting(how: Content | None) -> Content | None:
    """Return the section `adjusting_args` of a variable's adjustment; None if it, or the adjustment, is null."""
    given = how.get("adjusting_args", {}) if how is not None else None
    return given if isinstance(given, dict) else None


def _read_with_base(path: Path, read: dict[Path, YamlFile], above: tuple[Path, ...] = ()) -> None:
    """Read a file and, before it, its base; each once, even if links give it several names."""
    itself = path.resolve()
    if itself in above:
        raise ConfigurationError(f"{path}: its `base` leads back to the file itself. Name another file.")
    if len(above) > _MOST_BASES:
        raise ConfigurationError(f"{path} is a `base` of a `base` {len(above)} times; expected {_MOST_BASES} at most.")
    file = read_yaml(path)
    if "base" in file.content:
        base, place = file.content["base"], file.places["base",]
        try:
            if not isinstance(base, str):
                raise ValueError("expected the name of a YAML file")
            below = find_in(base, (path.parent, SHIPPED))
        except ValueError as error:
            raise ConfigurationError(f"`base` ({place}): got {base!r}: {error}.") from error
        if not below.is_file():
            raise ConfigurationError(
                f"`base` ({place}): got {base!r}, expected a YAML file; looked in {path.parent} and the package's "
                f"{SHIPPED}."
            )
        _read_with_base(below, read, (*above, itself))
    read.setdefault(itself, file)


def _known_sections(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the known sections; log a warning for the unknown.

    ESPO-G's files may have unknown sections. Raises `ConfigurationError` if an unknown section has nearly the name of a
    known one: what it says would be lost.
    """
    for section in content:
        if section not in SECTIONS:
            if nearest(section, SECTIONS, cutoff=ALIKE):
                raise ConfigurationError(f"{path}: `{section}`: {unknown('section', section, SECTIONS)}")
            logger.warning("%s: the section `%s` is unknown and has no effect.", path, section)
    return {key: value for key, value in content.items() if key in SECTIONS}


def _read_properties(content: Content, folders: Iterable[Path]) -> None:
    """Replace the names of properties files by the files' content."""
    for where in (*DETAILS, "domain-diag"):
        for at, details in mappings(content, where):
            if isinstance(name := details.get("properties"), str):
                shown = ".".join(as_written((*at, "properties"), COPIED))
                details["properties"] = read_yaml(properties_file(shown, name, folders)).content


def properties_file(shown: str, name: str, folders: Iterable[Path]) -> Path:
    """Return the path of a YAML file of properties, which a key (`shown`) names; raise ConfigurationError without."""
    try:
        path = find_file(name, folders)
    except ValueError as error:
        raise ConfigurationError(f"`{shown}`: got {name!r}: {error}.") from error
    if not path.is_file():
        looked = ", ".join(str(folder) for folder in dict.fromkeys((Path.cwd(), *folders)))
        raise ConfigurationError(f"`{shown}`: got {name!r}, expected a YAML file of properties; looked in {looked}.")
    return path
