"""The downscaler of the page, installed as a package would be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from downscaling_blocks import block
from others_packages import code_blocks

from espo_luigi.config.downscaling import DownscalingSection
from espo_luigi.downscaling import base
from espo_luigi.errors import ConfigurationError

PAGE = code_blocks("own-downscaler.md")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "monthly_differences.py").write_text(PAGE["python"][0])
    told = tmp_path / "monthly_differences-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: monthly-differences\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text("[espo_luigi.downscalers]\nmonthly = monthly_differences:Monthly\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    base._class_of.cache_clear()
    yield
    base._class_of.cache_clear()


def test_the_page_s_downscaler_is_chosen_by_its_name(installed: None) -> None:
    section = DownscalingSection.model_validate(yaml.safe_load(PAGE["yaml"][0])["downscaling"])
    assert section.given.arguments() == {"share": 0.5}
    assert 'monthly = "monthly_differences:Monthly"' in PAGE["toml"][0]
    fine = np.random.default_rng(0).normal(size=(3, 730)) + np.array([[0.0], [1.0], [5.0]])
    coarse = fine.mean(axis=0, keepdims=True)
    made = block(fine, coarse, coarse, "+", **section.given.arguments())
    method = base.downscaler_named("monthly")
    got = method.apply(made.adjusted, method.learn(made.coarse, made.fine, made.setup), made.setup)
    np.testing.assert_allclose(got.mean(axis=1) - coarse.mean(), 0.5 * (fine.mean(axis=1) - coarse.mean()), atol=0.01)
    assert method.steps(made.adjusted, None, made.setup, 0, 0) == []


def test_a_downscaler_that_nobody_installed_is_refused_with_the_group() -> None:
    with pytest.raises(ConfigurationError, match=r"espo_luigi\.downscalers"):
        base.downscaler_named("monthly")
