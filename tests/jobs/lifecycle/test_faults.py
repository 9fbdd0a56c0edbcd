"""A run whose files, nodes and people fail ends right, or tells what has failed; and the judge of that sees defects."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from failing_files import missing_parts
from fault_campaign import Run, contents_of, different_names, stage
from fault_kinds import deck
from fault_tasks import make_undisturbed

_MISSING = missing_parts()
SEED = 11


@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))
def test_a_run_among_a_dozen_faults_ends_right_or_names_them(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    kinds = deck(rng, 12)
    with stage(tmp_path, rng) as scene:
        verdict = Run(scene, "run", groups=2, seconds=0.5, limit_seconds=400).through(kinds, pause=(0.3, 1.0))
    assert not verdict.findings, "\n".join(verdict.findings)
    assert verdict.products_equal
    assert len(verdict.faults) > 6, "the run was over too soon to say anything"


def test_products_made_twice_are_equal_and_one_byte_is_a_difference(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        make_undisturbed(2, tmp_path / name)
        made.append(contents_of(tmp_path / name / "products"))
    assert len(made[0]) >= 100
    assert not different_names(*made)
    chunk = next((tmp_path / "two/products/Pair-1.zarr/tas/c").rglob("[0-9]"))
    while chunk.is_dir():
        chunk = next(chunk.iterdir())
    content = chunk.read_bytes()
    chunk.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    altered = contents_of(tmp_path / "two" / "products")
    assert different_names(made[0], altered) == {str(chunk.relative_to(tmp_path / "two" / "products"))}
    chunk.unlink()
    assert different_names(made[0], contents_of(tmp_path / "two" / "products"))
