"""Makes docs/start/tutorial.ipynb from the tutorial's Markdown; tests/test_site.py fails if they differ.

``python docs/make_notebook.py`` writes it. A block of the shell or of Python becomes a cell to run, all else text.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

TUTORIAL = Path(__file__).parent / "start" / "tutorial.md"
_BEFORE = (
    "*This notebook is the [tutorial](tutorial.md). Install Jupyter and espo_luigi in the same environment, activate "
    "it, and start Jupyter there. The folder `demo` is made beside this notebook.*"
)
_BLOCK = re.compile(r"^```(sh|bash|python)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def notebook(markdown: str) -> str:
    """Return a notebook (nbformat 4.5) without outputs, as JSON."""
    text, *parts = _BLOCK.split(markdown)
    title, _, rest = text.partition("\n\n")
    cells = [cell("markdown", f"{title}\n\n{_BEFORE}\n\n{rest}")]
    for language, block, after in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        cells += [cell("code", code) for code in codes(language, block)]
        cells += [cell("markdown", after)] if after.strip() else []
    numbered = [{"id": f"cell-{number:02d}", **one} for number, one in enumerate(cells)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = {"cells": numbered, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def codes(language: str, block: str) -> list[str]:
    """Return the code of a block's cells: the shell's `cd` holds for later cells only as a cell of its own."""
    if language == "python":
        return [block]
    parts = re.split(r"^(cd .*)\n", block, flags=re.MULTILINE)
    return [f"%{part}" if part.startswith("cd ") else f"%%bash -e\n{part}" for part in parts if part]


def cell(kind: str, text: str) -> dict[str, Any]:
    """Return a cell; its text is kept line by line, as Jupyter writes it."""
    more: dict[str, Any] = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, **more, "source": text.strip("\n").splitlines(keepends=True)}


if __name__ == "__main__":
    TUTORIAL.with_suffix(".ipynb").write_text(notebook(TUTORIAL.read_text()))
