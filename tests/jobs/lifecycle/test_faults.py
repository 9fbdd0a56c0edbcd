"""A run whose files, nodes and people fail ends right, or tells what has failed; and the judge of that sees defects."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from failing_files import missing_parts
from fault_campaign import Run, contents_of, different_names, failures_in, stage
from fault_kinds import KINDS, deck
from fault_tasks import make_undisturbed

_MISSING = missing_parts()
SEED = 11


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


def test_every_kind_is_dealt_and_a_seed_deals_the_same() -> None:
    names = [kind.name for kind in deck(random.Random(1), 2000)]
    assert set(names) == {kind.name for kind in KINDS}
    assert names == [kind.name for kind in deck(random.Random(1), 2000)]
    assert names != [kind.name for kind in deck(random.Random(2), 2000)]


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


def test_what_the_driver_says_of_failures_is_found() -> None:
    said = (
        "2026-01-01 00:00:00 ERROR   espo_luigi: Source n=1: job 7, attempt 1: exception: OSError: no\n"
        "2026-01-01 00:00:01 ERROR   espo_luigi.driver.run: 3 of 12 tasks done, 2 failed:\n"
        "2026-01-01 00:00:01 ERROR   espo_luigi.driver.run:   Source n=1: two lines:\n"
        "    EDQUOT\n"
        "  2 more failed alike: Scaled n=1, Scaled n=2\n"
        "2026-01-01 00:00:01 ERROR   espo_luigi.driver.run:   Source n=2: EIO\n"
    )
    assert [line.split()[-1] for line in failures_in(said)] == ["EDQUOT", "EIO"]
    assert failures_in("0 of 1 tasks done") == []
