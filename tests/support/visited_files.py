"""Counts the files of the package whose functions a run calls, in the driver and in its jobs.

`note_visits` writes a ``sitecustomize`` into an environment, each of whose processes notes in a file of its own what it
visits; `visited` reads the notes.
"""

from __future__ import annotations

from pathlib import Path

_NOTES = """\
import os, sys, threading

seen = set()


def look(frame, event, _):
    # Functions alone: the bodies of modules and classes are not optimized.
    code = frame.f_code
    if event == "call" and code not in seen and code.co_flags & 1:
        seen.add(code)
        if "/espo_luigi/" in code.co_filename:
            path = code.co_filename.rpartition("/espo_luigi/")[2]
            with open(os.path.join({folder!r}, f"{{os.getpid()}}.visited"), "a") as notes:
                notes.write(f"{{path}}:{{code.co_qualname}}\\n")


threading.setprofile(look)
sys.setprofile(look)
"""


def note_visits(folder: Path, packages: Path) -> None:
    """Have each Python that finds its packages in `packages` note in `folder` what it visits."""
    folder.mkdir()
    (packages / "sitecustomize.py").write_text(_NOTES.format(folder=str(folder)))


def visited(folder: Path) -> dict[str, set[str]]:
    """Return the visited functions by file, of all processes."""
    files: dict[str, set[str]] = {}
    for notes in folder.glob("*.visited"):
        for line in notes.read_text().splitlines():
            path, _, name = line.partition(":")
            files.setdefault(path, set()).add(name)
    return files
