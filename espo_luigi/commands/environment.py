"""The installed environment, to be made again where there is no internet: its exact versions, and their wheels."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from espo_luigi.errors import InstallationError
from espo_luigi.files import drop_shared_numba_cache, this_version
from espo_luigi.replacing import by_content, by_manifest, write_manifest, write_ours
from espo_luigi.store.publish import written_aside

PROJECT = "espo_luigi"
_MAKER = "espo env --wheelhouse"
_PINS = re.compile(rb"# [^\n]+, [^\n]+\n(?:[\w.-]+==[^\s]+\n)+")
_REQUIREMENTS = by_content(lambda content: bool(_PINS.fullmatch(content)), "a file of `espo env --requirements`")


def described_platform() -> str:
    """Return what wheels of this environment are for: Python, system, processor and C library."""
    python = f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"
    return f"{python}, {platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}".rstrip(", ")


def requirements_text() -> str:
    """Return a requirements file with the exact versions of all installed packages.

    Raises
    ------
    InstallationError
        If pip is missing.
    """
    # `pip freeze` would name folders and URLs, which another machine lacks.
    return f"# {described_platform()}\n{_pip('list', '--format=freeze')}"


def write_requirements(path: Path) -> str:
    """Write the requirements file; return a sentence about it."""
    text = requirements_text()
    write_ours(path, text, _REQUIREMENTS)
    return f"{path}: {text.count('==')} exact versions"


def collect_wheels(folder: Path) -> str:
    """Let pip collect the wheels of this project and of all that it requires; return a sentence about them.

    They have the versions that are installed here. The folder appears whole.

    Raises
    ------
    InstallationError
        If pip is missing or fails.
    StoreError
        If there is a folder that this command has not made, or a file.
    """
    with written_aside(folder, judge=by_manifest(_MAKER)) as content, tempfile.TemporaryDirectory() as private:
        wheels = _make_wheels(Path(private))
        content.mkdir()
        for wheel in wheels:
            shutil.copy(wheel, content)
        write_manifest(content, _MAKER)
    return (
        f"{folder}: {len(wheels)} wheels of exact versions, for {described_platform()}\n"
        f"pip install --no-index --find-links {shlex.quote(str(folder))} {PROJECT}=={this_version()}"
    )


def _make_wheels(private: Path) -> list[Path]:
    wheels, pins = private / "wheels", private / "pins.txt"
    # `pip freeze` has a file's address in place of a version where a package came from a file, as conda's do.
    pins.write_text(_pip("list", "--format=freeze", "--exclude-editable", "--exclude", PROJECT))
    others = _pip("freeze", "--exclude", PROJECT).splitlines()
    sources = [word for line in others if line.startswith("-e ") for word in line.split(maxsplit=1)]
    checkout = Path(__file__).parents[2]
    if (checkout / "setup.cfg").exists():
        # Setuptools builds here: the source's own folder `build` may hold modules of earlier versions.
        extra = private / "extra.cfg"
        extra.write_text(f"[build]\nbuild_base = {private}/build\n[egg_info]\negg_base = {private}\n")
        own = {"DIST_EXTRA_CONFIG": str(extra)}
        _pip("wheel", "--no-deps", f"--wheel-dir={private}", str(checkout), environment=own)
        sources += map(str, private.glob("*.whl"))
    else:
        sources += [line for line in _pip("freeze").splitlines() if line not in others]
    _pip("wheel", f"--wheel-dir={wheels}", f"--constraint={pins}", *sources)
    return sorted(wheels.iterdir())


def _pip(command: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run pip; return its output, "" for `wheel`, which prints to standard error."""
    if importlib.util.find_spec("pip") is None:
        raise InstallationError(f"{sys.prefix} has no pip: `{sys.executable} -m ensurepip` installs it")
    words = [sys.executable, "-P", "-m", "pip", command, "--disable-pip-version-check", *arguments]
    # The messages of a long command go where our own go: standard output is for the result.
    output = 2 if command == "wheel" else subprocess.PIPE
    env = {**os.environ, **(environment or {})}
    done = subprocess.run(words, stdout=output, stderr=subprocess.PIPE, text=True, check=False, env=env)
    if done.returncode:
        # Older versions of pip indent the errors of a build.
        lines = [line.strip() for line in done.stderr.splitlines()]
        errors = [line for line in lines if line.startswith(("ERROR", "WARNING: Retrying"))]
        raise InstallationError(
            f"`pip {command}` ended with code {done.returncode}:\n" + "\n".join(errors or [done.stderr]) + "\n"
            "It needs the internet, or an index of the site; the same command can be given again. Where there is "
            f"neither, give it on another machine ({described_platform()}), and copy the folder"
        )
    return done.stdout or ""


def compile_kernels() -> str:
    """Compile all that jobs would compile at its first use; return a sentence about it."""
    if fault := drop_shared_numba_cache():
        raise InstallationError(fault)
    from espo_luigi.methods.dqm.compilation import compile_all

    done = compile_all()
    took = f"{done.functions} functions compiled in {done.seconds:.0f} s" if done.functions else "nothing to do"
    text = f"{took}: the kernels' machine code for this kind of processor ({done.processor}) is in {done.folder}"
    if done.is_beside or os.environ.get("NUMBA_CACHE_DIR"):
        return text
    return (
        f"{text}\nThe installation cannot be written, or others can write it, too: this code is for you alone. "
        "NUMBA_CACHE_DIR may name another folder of yours, here and for the jobs"
    )
