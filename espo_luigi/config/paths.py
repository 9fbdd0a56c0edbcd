"""Rendering and reading of path templates; the templates themselves are the output ports of the rules, in `tasks`.

A template is a path such as ``{tmpdir}/{sim_id}+{piece}+regridded.zarr``. Because ``+`` never occurs inside a part, a
path always says which task makes it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import string
from collections.abc import Mapping
from pathlib import Path

from espo_luigi.errors import ConfigurationError


def existing_parent(folder: Path) -> Path:
    """Return `folder`, or the nearest folder above it that exists."""
    return next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())


def check_products_folder(products: Path, temporary: Path) -> None:
    """Raise `ConfigurationError` if the folder of products is the root, a home folder, or the temporary files'."""
    final, tmpdir = products.resolve(), temporary.resolve()
    why = ""
    if final.is_relative_to(tmpdir):
        why = f"it is {'' if final == tmpdir else 'inside of '}paths.tmpdir ({tmpdir}), whose files a run deletes"
    elif final == Path("/"):
        why = "it is the root of the file system"
    elif final in _homes(final):
        why = "it is a home folder"
    if why:
        raise ConfigurationError(
            f"paths.final = {products}: {why}. Expected a folder for the products alone: name another, such as "
            f"{(tmpdir.parent if final.is_relative_to(tmpdir) else final) / 'espo-final'}"
        )


def _homes(folder: Path) -> set[Path]:
    """The home folders of this user, and of the owner of a folder."""
    homes = [os.environ.get("HOME") or "/"]
    for user in {os.geteuid(), folder.stat().st_uid if folder.exists() else os.geteuid()}:
        with contextlib.suppress(KeyError):
            homes.append(pwd.getpwuid(user).pw_dir)
    return {Path(home).resolve() for home in homes}


def render_path(template: str, fields: Mapping[str, str]) -> Path:
    """Return the path that `template` names once its wildcards are `fields`."""
    return Path(template.format_map(fields))


def match_path(template: str, constants: Mapping[str, str], path: Path) -> dict[str, str] | None:
    """Return the wildcards that turn `template` into `path`, or None; `constants` are the fields already known."""
    pattern = ""
    seen: set[str] = set()
    for literal, name, _, _ in string.Formatter().parse(template):
        pattern += re.escape(literal)
        if name is None:
            continue
        if name in constants:
            pattern += re.escape(constants[name])
        elif name in seen:
            pattern += f"(?P={name})"
        else:
            pattern += f"(?P<{name}>[^+/]+)"
            seen.add(name)
    found = re.fullmatch(pattern, str(path))
    return None if found is None else found.groupdict()
