"""A folder that all processes with tests share, for data that no test changes."""

import os
import shutil
from pathlib import Path

import pytest


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the folder; what makes data in it has to cope with others that do so at the same time."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def linked_copy(raw: Path, folder: Path) -> Path:
    """Copy raw data: files as hard links, which may be replaced but not changed, and catalogues of their own."""
    shutil.copytree(raw, folder, copy_function=os.link)
    for catalogue in folder.glob("*.*"):
        text = catalogue.read_text()
        catalogue.unlink()
        catalogue.write_text(text.replace(str(raw), str(folder)))
    return folder
