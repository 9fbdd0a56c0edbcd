"""Packages of strangers, whose files are the code blocks of a how-to page, installed into a folder of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HOW_TO = Path(__file__).parents[2] / "docs" / "extend"


def code_blocks(page: str) -> dict[str, list[str]]:
    """The code blocks of a how-to page, by their language."""
    found: dict[str, list[str]] = {}
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```", (HOW_TO / page).read_text(), re.DOTALL | re.MULTILINE):
        found.setdefault(language, []).append(text)
    return found


def install_all(folder: Path) -> Path:
    """Install the packages of the how-to pages; return the folder that has to be on Python's path."""
    method, production = code_blocks("own-method.md"), code_blocks("own-production.md")
    packages = {
        "scaling-of-mine": {"scaling_of_mine.py": method["python"][0], "pyproject.toml": method["toml"][0]},
        "institute-x": {
            "institute_x/__init__.py": production["python"][0],
            "institute_x/names.yml": production["yaml"][0],
            "pyproject.toml": production["toml"][0],
        },
    }
    assert sum(len(text.splitlines()) for text in packages["scaling-of-mine"].values()) <= 60
    target = folder / "site"
    for package, files in packages.items():
        for name, text in files.items():
            (folder / package / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / package / name).write_text(text)
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        *offline,
        "--target",
        target,
        *(folder / name for name in packages),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target
