"""The benchmark of training and adjusting, whose command is on the documents' first page."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import adjustment


def test_the_memory_of_a_block_is_measured() -> None:
    assert adjustment.peak_of("adjust_repeated", "tasmax", 6, 31) > 50
