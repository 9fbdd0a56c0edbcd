"""Gives commands of `espo` in a folder, as a user does, without the seconds that imports take."""

import multiprocessing
import os
import sys
from pathlib import Path
from typing import NamedTuple

from luigi.configuration import LuigiConfigParser

from espo_luigi.commands import cli

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["espo_luigi.commands.cli", "espo_luigi.tasks"])


class Done(NamedTuple):
    """The exit code and the output of a command."""

    returncode: int
    stdout: str
    stderr: str


def espo(folder: Path, *arguments: str) -> Done:
    """Give the command in a process of its own, forked from one that has imported what it takes seconds to import."""
    files = [folder / name for name in ("stdout", "stderr")]
    process = FORKS.Process(target=_command, args=(folder, arguments, files))
    process.start()
    process.join()
    assert process.exitcode is not None
    return Done(process.exitcode, *(path.read_text() for path in files))


def _command(folder: Path, arguments: tuple[str, ...], files: list[Path]) -> None:
    os.chdir(folder)
    LuigiConfigParser.reload()  # of this folder's luigi.cfg
    for number, path in enumerate(files, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.exit(cli.main(list(arguments)))
