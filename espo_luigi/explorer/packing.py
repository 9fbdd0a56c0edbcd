"""Data as scripts, which alone a page can load that was opened from a disk: numbers of 16 bits, texts that are safe."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

MISSING = -32768
# Of each number that is packed, in a file.
BYTES_OF_NUMBER = 2 * 4 / 3


def packed(values: Any) -> dict[str, Any]:
    """Return numbers of any shape as 16-bit integers in base64, little-endian, in steps of 1/65534 of their range.

    A value is `data * scale + offset`. What is not finite is missing, -32768.
    """
    numbers = np.asarray(values, float)
    known = np.isfinite(numbers)
    low, high = (numbers[known].min(), numbers[known].max()) if known.any() else (0.0, 0.0)
    scale = (high - low) / 65534 or 1.0
    offset = low + 32767 * scale
    integers = np.full(numbers.shape, MISSING, "<i2")
    integers[known] = np.rint((numbers[known] - offset) / scale)
    return {"shape": list(numbers.shape), "scale": float(scale), "offset": float(offset), "data": as_base64(integers)}


def as_base64(integers: np.ndarray) -> str:
    """Return the bytes of integers in C order."""
    return base64.b64encode(np.ascontiguousarray(integers).tobytes()).decode()


def as_script(key: str, value: Any) -> str:
    """Return the line of script that gives the page a value; no text in it ends the script or the line."""
    text = json.dumps([key, value], allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f"espo.add({text[1:-1]});\n"
