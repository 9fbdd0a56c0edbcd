"""Reads the explorer's data files back: its scripts, and the numbers packed in them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np


def read_file(page: Path, key: str) -> Any:
    """The value that a data file gives the page."""
    text = (page.with_suffix("") / "data" / f"{key}.js").read_text("ascii")
    assert text.startswith("espo.add(") and text.endswith(");\n") and text.count("\n") == 1
    named, value = json.loads(f"[{text[9:-3]}]")
    assert named == key
    return value


def unpacked(packed: dict[str, Any]) -> tuple[np.ndarray, float]:
    """Numbers, and how far they may be from the true ones."""
    whole = np.frombuffer(base64.b64decode(packed["data"]), "<i2").reshape(packed["shape"])
    values = np.where(whole == -32768, np.nan, whole * packed["scale"] + packed["offset"])
    return values, 0.51 * packed["scale"]
