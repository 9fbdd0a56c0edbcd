"""What a problem with raw files does: by kind, fail or warn, and never warn where nothing can be made of the files."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest

from espo_luigi.config import RunConfig
from espo_luigi.config.searching import OnInputProblem
from espo_luigi.errors import ConfigurationError
from espo_luigi.science.problems import INPUT_PROBLEMS, DoubtfulInput, SuspiciousInput, UnusableInput

Load = Callable[..., RunConfig]


def test_every_kind_of_problem_has_its_key_and_the_defaults_are_what_espo_g_does(load_with: Load) -> None:
    chosen = load_with().extraction.on_input_problem.model_dump()
    assert tuple(chosen) == INPUT_PROBLEMS == tuple(OnInputProblem.model_fields)
    failing, warned = (*get_args(UnusableInput), *get_args(DoubtfulInput)), get_args(SuspiciousInput)
    expected = dict.fromkeys(failing, "fail") | dict.fromkeys(warned, "warn")
    assert chosen == expected


def test_a_warning_can_be_made_an_error_without_another_hash(load_with: Load) -> None:
    strict = load_with("extraction: {on_input_problem: {tasmax_below_tasmin: fail}}")
    assert strict.extraction.on_input_problem.tasmax_below_tasmin == "fail"
    assert strict.extraction.on_input_problem.constant_maps == "warn"
    assert strict.hash == load_with().hash


@pytest.mark.parametrize("kind", get_args(DoubtfulInput))
def test_what_is_doubtful_fails_unless_it_is_let_through(load_with: Load, kind: str) -> None:
    let_through = load_with(f"extraction: {{on_input_problem: {{{kind}: warn}}}}")
    assert getattr(let_through.extraction.on_input_problem, kind) == "warn"


@pytest.mark.parametrize("kind", get_args(UnusableInput))
def test_what_no_dataset_can_be_made_of_always_fails(load_with: Load, kind: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        load_with(f"extraction: {{on_input_problem: {{{kind}: warn}}}}")
    assert f"`extraction.on_input_problem.{kind}` (" in str(refusal.value)
    assert "change0.yml, line 1" in str(refusal.value)
    assert "got 'warn' (text): expected fail: no dataset can be made of such files" in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("{tasmax_below_tasmin: ignore}", "got 'ignore' (text), expected 'fail' or 'warn'"),
        (
            "{tasmax_under_tasmin: warn}",
            "unknown key; did you mean tasmax_below_tasmin?",
        ),
        ("warn", "got 'warn' (text), expected a mapping"),
    ],
)
def test_another_word_and_another_kind_are_refused(load_with: Load, change: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        load_with(f"extraction: {{on_input_problem: {change}}}")
    assert message in str(refusal.value)


def test_an_empty_section_changes_nothing(load_with: Load) -> None:
    assert load_with("extraction: {on_input_problem: {}}").model_dump() == load_with().model_dump()
