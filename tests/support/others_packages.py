"""Packages of strangers, whose files are the code blocks of a how-to page, installed into a folder of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


def code_blocks(page: str) -> dict[str, list[str]]:
    """The code blocks of a how-to page, by their language."""
    found: dict[str, list[str]] = {}
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```", (HOW_TO / page).read_text(), re.DOTALL | re.MULTILINE):
        found.setdefault(language, []).append(text)
    return found


def install(files: dict[str, str], folder: Path) -> Path:
    """Install the package that these files are; return the folder that has to be on Python's path."""
    source, target = folder / "source", folder / "site"
    for name, text in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", target, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target
