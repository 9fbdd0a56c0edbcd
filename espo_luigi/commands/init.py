"""``espo init``: writes a folder to start from, made of the files that the repository's own demo is run with."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from espo_luigi.commands.views import say

_STARTS = Path(__file__).parent / "starts"  # links to the repository's luigi.cfg and config/, and the READMEs
# In the repository's luigi.cfg, and in that of a folder: its configuration lies beside it.
_BESIDE = ("config = config/demo/config.yml config/demo/paths.yml", "config = config.yml paths.yml")
_DEMOS_WORKDIR = "workdir = espo-demo/run"
_STARTS_AND_WORKDIRS = {
    "demo": _DEMOS_WORKDIR,
    "espo-g6": "workdir = espo-work",
    "espo-v2": "workdir = espo-work",
    "v2-demo": "workdir = espo-v2-demo/run",
}


def files_of(start: str) -> dict[str, str]:
    """Return the names and texts of the files that ``espo init --from START`` writes."""
    texts = {path.name: path.read_text("utf-8") for path in sorted((_STARTS / start).glob("*.yml"))}
    settings = (_STARTS / "luigi.cfg").read_text("utf-8").replace(*_BESIDE)
    settings = settings.replace(_DEMOS_WORKDIR, _STARTS_AND_WORKDIRS[start])
    if (resources := _STARTS / start / "luigi.cfg").exists():
        settings = f"{settings}\n{resources.read_text('utf-8')}"
    return {"README.md": (_STARTS / f"{start}.md").read_text("utf-8"), "luigi.cfg": settings, **texts}


def write_start(folder: Path, start: str) -> list[Path]:
    """Write the files of a start into `folder`, which may exist; return their paths.

    Raises
    ------
    FileExistsError
        If any of the files exists; nothing is written then.
    """
    texts = files_of(start)
    if existing := [name for name in texts if os.path.lexists(folder / name)]:
        raise FileExistsError(
            f"{folder} already has {', '.join(existing)}; nothing was written. Name a new folder, or move these files"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        with (folder / name).open("x", encoding="utf-8") as file:
            file.write(text)
    return [folder / name for name in texts]


@click.command(epilog="Example: espo init demo")
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option(
    "--from",
    "start",
    type=click.Choice(list(_STARTS_AND_WORKDIRS)),
    default="demo",
    show_default=True,
    help="The built-in example, the values of ESPO-G6 or of ESPO v2, or the example of ESPO v2.",
)
def init(folder: Path, start: str) -> None:
    """Write a folder to start from; it overwrites nothing."""
    for path in write_start(folder, start):
        say(path)
    enter = "" if folder == Path() else f"`cd {shlex.quote(str(folder))}`, then "
    say(f"Next: {enter}`espo plan`; README.md has the other steps.")
