"""Commands on the pages are accepted as they stand; tests/tasks/test_end_to_end.py runs those about a finished run."""

import re
from pathlib import Path

import pytest
from page_commands import (
    ROOT,
    bash_problem,
    blocks_of,
    is_of_a_reader,
    missing_files,
    module_of,
    ours_in,
    problem_of,
    simple_commands,
    spans_of,
    without_fences,
    written_pages,
)

PAGES = written_pages()
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
of_every_page = pytest.mark.parametrize("path", PAGES, ids=NAMES)


@of_every_page
def test_the_commands_of_a_page_are_accepted(path: Path) -> None:
    wrong = []
    for block in filter(lambda one: one.has_commands, blocks_of(path)):
        if told := bash_problem(block.text):
            wrong.append(f"{block.text}: {told}")
            continue
        for words in [words for line in block.lines() for words in simple_commands(line)]:
            wrong += [f"{' '.join(words)}: there is no {name}" for name in missing_files(words)]
            for ours in ours_in(words):
                if is_of_a_reader(ours):
                    assert f"{module_of(ours).partition('.')[0]}" in path.read_text()
                elif told := problem_of(ours):
                    wrong.append(f"{' '.join(words)}: {told}")
    assert wrong == []


# What is said of a command that is named without its arguments, or about a folder of the reader's.
NAMED_ONLY = re.compile(r"Missing |Option '[-\w]+' requires|.*(requires the|No task|expected one of|does not exist)")


@of_every_page
def test_the_commands_in_a_page_s_prose_have_options_that_are_there(path: Path) -> None:
    wrong = []
    for span in spans_of(path):
        whole = re.sub("^luigi …(?= [A-Z])", "luigi --module espo_luigi.tasks", span)
        for words in simple_commands(whole.replace("luigi …", "luigi --module espo_luigi.tasks All")):
            for ours in ours_in(words):
                told = "" if "…" in " ".join(words) or is_of_a_reader(ours) else problem_of(ours)
                wrong += [f"{span}: {told}"] if told and not NAMED_ONLY.match(told) else []
    assert wrong == []


@of_every_page
def test_no_command_stands_in_a_block_that_is_not_tested(path: Path) -> None:
    """Commands are in blocks marked `sh`; the output of a command is in a block marked `text`."""
    untested = [block for block in blocks_of(path) if block.language in ("", "console", "shell")]
    lines = [line for block in untested if not block.has_commands for line in block.lines()]
    assert [line for line in lines if re.match(r"(\$ )?(espo|luigi) ", line)] == []
    plain = without_fences(path)
    assert re.findall(r"^(?: {4}|\t)+(?:espo|luigi) .*", plain, re.MULTILINE) == [], "a block without a fence"


def test_a_command_is_found_behind_assignments_pipes_and_programs_that_start_it() -> None:
    line = "A=1 xargs -n 1 luigi --module m All < ids | tee log; cd there && .venv/bin/espo plan --dag dot > x.dot"
    found = [ours for words in simple_commands(line) for ours in ours_in(words)]
    assert found == [["luigi", "--module", "m", "All"], ["espo", "plan", "--dag", "dot"]]
    (tmux,) = simple_commands("tmux new -d 'luigi --module m All'")
    assert list(ours_in(tmux)) == [["luigi", "--module", "m", "All"]]
    assert [list(ours_in(words)) for words in simple_commands("pip install espo_luigi && which espo")] == [[], []]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("espo plam", "there is no command plam"),
        ("espo plan --tsks", "--tsks"),
        ("espo export --rerun all netcdf", "'all' is not one of"),
        ("espo why …", "ellipsis"),
        ("luigi --module espo_luigi.tasks Al --local-scheduler", "No task Al"),
        ("luigi --module espo_luigi.tasks All --smi-id NoLeap", "--smi-id"),
        ("luigi --module espo_luigi.tasks Train --region south", "requires the"),
    ],
)
def test_a_wrong_command_is_told(line: str, told: str) -> None:
    assert told in problem_of(line.split())
