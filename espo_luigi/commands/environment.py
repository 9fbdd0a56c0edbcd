"""The installed environment, to be made again where there is no internet: its exact versions, and their wheels."""

from __future__ import annotations

import configparser
import importlib.util
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.requirements import Requirement
from packaging.tags import Tag, sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from espo_luigi.errors import InstallationError
from espo_luigi.files import drop_shared_numba_cache
from espo_luigi.replacing import Judge, by_content, is_hidden_name, partial_path, put, write_ours
from espo_luigi.store.disk import delete_quietly
from espo_luigi.store.partials import sweep_partials

PROJECT = "espo_luigi"
# In a wheelhouse, the hidden folder of unfinished wheels has this in its name.
_UNFINISHED = "wheels"
_PINS = re.compile(rb"# [^\n]+, [^\n]+\n(?:[\w.-]+==[^\s]+\n)+")
_REQUIREMENTS = by_content(lambda content: bool(_PINS.fullmatch(content)), "a file of `espo env --requirements`")


def described_platform() -> str:
    """Return what wheels of this environment are for: Python, system, processor and C library."""
    python = f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"
    return f"{python}, {platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}".rstrip(", ")


def needed_distributions(project: str) -> list[Distribution]:
    """Return the installed distributions of a project and of all that it requires here, by name.

    Markers are evaluated for this Python and platform; extras count as far as something requires them.

    Raises
    ------
    InstallationError
        If something that is required is not installed.
    """
    found: dict[str, Distribution] = {}
    seen: dict[str, set[str]] = {}
    to_visit = [(Requirement(project), "`espo env`")]
    while to_visit:
        requirement, by = to_visit.pop()
        name = canonicalize_name(requirement.name)
        if name not in found:
            found[name], seen[name] = _installed(requirement.name, by), set()
        extras = {"", *requirement.extras} - seen[name]
        seen[name] |= extras
        to_visit += [(one, found[name].name) for one in _requirements_of(found[name], extras)]
    return [found[name] for name in sorted(found)]


def _installed(name: str, by: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError as error:
        raise InstallationError(
            f"{by} requires {name}, which is not installed in {sys.prefix}: install it there, and try again"
        ) from error


def _requirements_of(one: Distribution, extras: Iterable[str]) -> Iterator[Requirement]:
    for requirement in map(Requirement, _required_by(one)):
        marker = requirement.marker
        if any(marker is None or marker.evaluate({"extra": extra}) for extra in extras):
            yield requirement


def _checkout(one: Distribution) -> Path | None:
    """Return the folder that this very code is run from, if it is a source folder and `one` is the project."""
    folder = Path(__file__).parents[2]
    is_project = canonicalize_name(one.name) == canonicalize_name(PROJECT)
    return folder if is_project and (folder / "setup.cfg").exists() else None


def _required_by(one: Distribution) -> list[str]:
    checkout = _checkout(one)
    if checkout is None:
        return one.requires or []
    # The metadata of an editable project are those of the day when it was installed.
    parser = configparser.ConfigParser()
    parser.read(checkout / "setup.cfg")
    return parser["options"]["install_requires"].strip().splitlines()


def _pin(one: Distribution) -> str:
    return f"{one.name}=={one.version}"


def requirements_text() -> str:
    """Return a requirements file with the exact versions of all needed packages."""
    return "\n".join([f"# {described_platform()}", *map(_pin, needed_distributions(PROJECT))]) + "\n"


def write_requirements(path: Path) -> str:
    """Write the requirements file; return a sentence about it."""
    text = requirements_text()
    write_ours(path, text, _REQUIREMENTS)
    return f"{path}: {text.count('==')} exact versions"


def collect_wheels(folder: Path) -> str:
    """Let pip put the wheels of all needed packages into a folder; return a sentence about it.

    Wheels that are there already are used. Each appears whole, so that a call that was cut short can be repeated.

    Raises
    ------
    InstallationError
        If the folder holds something else than wheels, or pip is missing, fails, or makes other versions.
    """
    needed = needed_distributions(PROJECT)
    _check_folder(folder)
    partial = partial_path(folder / _UNFINISHED)
    partial.mkdir(parents=True)
    sweep_partials(folder / _UNFINISHED)
    try:
        have = set(_fitting_wheels(folder))
        _make_wheels({_pin(one): _source(one) for one in needed if _is_to_make(one, have)}, partial)
        _check_versions(needed, {*have, *_fitting_wheels(partial)})
        for wheel in list(partial.iterdir()):
            put(wheel, folder / wheel.name, _wheel_of(wheel.name))
    finally:
        delete_quietly(partial)
    return (
        f"{folder}: wheels of {len(needed)} exact versions, for {described_platform()}\n"
        f"pip install --no-index --find-links {shlex.quote(str(folder))} {_pin(distribution(PROJECT))}"
    )


def _wheel_of(name: str) -> Judge:
    """The judge of a wheel that may be replaced by another build of the same version."""
    record = f"{'-'.join(name.split('-')[:2])}.dist-info/RECORD".encode()
    return by_content(lambda content: record in content, "a wheel of the same version")


def compile_kernels() -> str:
    """Compile all that jobs would compile at its first use; return a sentence about it."""
    if fault := drop_shared_numba_cache():
        raise InstallationError(fault)
    from espo_luigi.science.adjust.compilation import compile_all

    done = compile_all()
    took = f"{done.functions} functions compiled in {done.seconds:.0f} s" if done.functions else "nothing to do"
    text = f"{took}: the kernels' machine code for this kind of processor ({done.processor}) is in {done.folder}"
    if done.is_beside or os.environ.get("NUMBA_CACHE_DIR"):
        return text
    return (
        f"{text}\nThe installation cannot be written, or others can write it, too: this code is for you alone. "
        "NUMBA_CACHE_DIR may name another folder of yours, here and for the jobs"
    )


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InstallationError(f"{folder} is a file, expected a folder of wheels, or none yet: name another")
    others = sorted(path.name for path in folder.glob("*") if not is_hidden_name(path.name) and not _parts(path))
    if others:
        raise InstallationError(
            f"{folder} holds {others[0]}{' and more' if others[1:] else ''}, expected an empty folder, one that holds "
            "wheels only, or none yet: name another"
        )


def _parts(path: Path) -> tuple[str, Version, frozenset[Tag]] | None:
    try:
        name, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename:
        return None
    return name, version, tags


def _fitting_wheels(folder: Path) -> Iterator[tuple[str, Version]]:
    """Yield name and version of the wheels that this Python can install."""
    fitting = frozenset(sys_tags())
    for name, version, tags in filter(None, map(_parts, folder.iterdir())):
        if tags & fitting:
            yield name, version


def _key(one: Distribution) -> tuple[str, Version]:
    return canonicalize_name(one.name), Version(one.version)


def _is_to_make(one: Distribution, have: Collection[tuple[str, Version]]) -> bool:
    # A wheel made from a folder may differ each time, under the same version.
    return _key(one) not in have or isinstance(_source(one), Path)


def _source(one: Distribution) -> str | Path:
    """Return the source from which pip makes the wheel: the source folder, or else the requirement or URL."""
    if checkout := _checkout(one):
        return checkout
    origin = json.loads(one.read_text("direct_url.json") or "{}")
    url, commit = origin.get("url", ""), origin.get("vcs_info")
    if "dir_info" in origin:
        return Path(url2pathname(urlsplit(url).path))
    if commit:
        return f"{one.name} @ {commit['vcs']}+{url}@{commit['commit_id']}"
    return f"{one.name} @ {url}" if url else _pin(one)


def _make_wheels(sources: Mapping[str, str | Path], folder: Path) -> None:
    arguments = ("wheel", "--no-deps", f"--wheel-dir={folder.absolute()}")
    if named := [source for source in sources.values() if isinstance(source, str)]:
        _pip(*arguments, *named)
    for name, source in sources.items():
        if isinstance(source, Path):
            if not source.is_dir():
                raise InstallationError(f"{name} was installed from {source}, which is gone: install it again")
            with tempfile.TemporaryDirectory() as build:
                _pip(*arguments, str(source.absolute()), environment=_built_in(build))


def _built_in(folder: str) -> dict[str, str]:
    """Have setuptools build there: a source's own folder `build` may hold modules of earlier versions."""
    extra = Path(folder) / "extra.cfg"
    extra.write_text(f"[build]\nbuild_base = {folder}\n[egg_info]\negg_base = {folder}\n")
    return {"DIST_EXTRA_CONFIG": str(extra)}


def _pip(*arguments: str, environment: Mapping[str, str] | None = None) -> None:
    if importlib.util.find_spec("pip") is None:
        raise InstallationError(f"{sys.prefix} has no pip: `{sys.executable} -m ensurepip` installs it")
    command = [sys.executable, "-P", "-m", "pip", *arguments]
    # pip's messages go where our own go: standard output is for the result.
    done = subprocess.run(
        command, stdout=2, stderr=subprocess.PIPE, text=True, check=False, env={**os.environ, **(environment or {})}
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith(("ERROR", "WARNING: Retrying"))]
        raise InstallationError(
            f"`pip {arguments[0]}` ended with code {done.returncode}:\n" + "\n".join(errors or [done.stderr]) + "\n"
            "It needs the internet, or an index of the site; the same command can be given again. Where there is "
            f"neither, give it on another machine ({described_platform()}), and copy the folder"
        )


def _check_versions(needed: Iterable[Distribution], have: Collection[tuple[str, Version]]) -> None:
    for one in needed:
        if _key(one) not in have:
            raise InstallationError(
                f"{_source(one)} gave no wheel of {_pin(one)}, which is installed: has it changed since? "
                "Install it again"
            )
