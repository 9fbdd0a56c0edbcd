"""Random draws that depend on the seed and the cell alone."""

from __future__ import annotations

import numpy as np

from espo_luigi.science.seeds import numpy_state


def test_numpys_own_generator_is_seeded_and_put_back() -> None:
    np.random.seed(1)
    expected = np.random.random(2)
    np.random.seed(1)
    first = np.random.random()
    with numpy_state("a", "train", 0):
        inside = np.random.random()
    with numpy_state("a", "train", 0):
        assert np.random.random() == inside
    assert [first, np.random.random()] == list(expected)
