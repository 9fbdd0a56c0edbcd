"""The commands on the pages of the documentation: found, taken apart, and checked without being run.

A block marked `sh` or `bash` has commands only; each line is a command, but for lines that end in a backslash and for
loops. The words in capitals of `PLACEHOLDERS` stand for what differs from reader to reader.
"""

from __future__ import annotations

import io
import itertools
import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import click
from luigi.cmdline_parser import CmdlineParser
from luigi.parameter import ParameterException
from luigi.task_register import TaskClassException

import espo_luigi.tasks  # noqa: F401  (the rules, which Luigi's parser knows by name)
from espo_luigi.commands import cli

ROOT = Path(__file__).parents[2]
# Words of pages, and values of the demo in their place; others' simulations are not in the demo, either.
PLACEHOLDERS = {
    **dict.fromkeys(("SIM_ID", "SIM-ID", "ID", "PART_OF_ID", "PART-OF-ID"), "NoLeap"),
    **dict.fromkeys(("CanESM5", "CanESM5_ssp585", "NorESM2", "NorESM2-MM", "MPI-ESM1-2-HR"), "NoLeap"),
    **{"RULE": "Train", "TASK": "RefDefault", "REGION": "south", "PIECE": "south", "VAR": "pr", "PROFILE": "narval"},
    **{"LAT": "46.9", "LON": "-71.6", "DATE": "2035-07-14"},
}
_FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>```+|~~~+) *(?P<language>[\w+-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)(?P=fence) *$",
    re.S | re.M,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_JOINTS = frozenset({"|", "||", "&", "&&", ";", "(", ")", "|&", ";;"})
_REDIRECTIONS = frozenset({">", ">>", "<", "2>", "&>", ">&", "<<<"})
_KEYWORDS = frozenset({"do", "then", "else", "!", "time", "{", "exec", "nohup", "if", "while", "until"})


@dataclass(frozen=True)
class Block:
    """A block of a page in a fence, with its language."""

    page: str
    language: str
    text: str

    @property
    def has_commands(self) -> bool:
        return self.language in ("sh", "bash") or (self.page == "README.md" and not self.language)

    def lines(self) -> list[str]:
        """Its commands, a line that goes on joined to the next, without comments."""
        joined = re.sub(r"\\\n\s*", " ", self.text)
        return [line.strip() for line in joined.splitlines() if line.strip() and not line.strip().startswith("#")]


def blocks_of(path: Path) -> list[Block]:
    """All blocks in fences of a page, in order."""
    found = _FENCE.finditer(path.read_text())
    name = path.relative_to(ROOT).as_posix()
    return [Block(name, one["language"], textwrap.dedent(one["text"])) for one in found]


def written_pages() -> list[Path]:
    """The pages and the README, but for the command's reference: it is made of its help, which has tests of its own."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name != "cli.md"]
    return sorted([*pages, ROOT / "CONTRIBUTING.md", ROOT / "README.md"])


def simple_commands(line: str) -> list[list[str]]:
    """The words of each simple command of a line: without assignments, keywords and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    skip = False
    for word in lexer:
        if skip:
            skip = False
        elif word in _JOINTS:
            commands.append([])
        elif word in _REDIRECTIONS:
            skip = True
            if commands[-1] and commands[-1][-1].isdigit():
                commands[-1].pop()
        elif commands[-1] or not (_ASSIGNMENT.match(word) or word in _KEYWORDS):
            commands[-1].append(word)
    return [words for words in commands if words]


def ours_in(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the `espo` and `luigi` commands that a simple command is or starts: `xargs -n 1 espo why`."""
    for place, word in enumerate(words):
        if word.rpartition("/")[2] in ("espo", "luigi") and (place == 0 or _starts_another(words[:place])):
            yield [word.rpartition("/")[2], *words[place + 1 :]]
        elif place and " " in word and re.match(r"(espo|luigi) ", word):  # tmux new -d 'luigi …'
            for inner in simple_commands(word):
                yield from ours_in(inner)


def _starts_another(before: Sequence[str]) -> bool:
    programs = {"xargs", "srun", "nohup", "tmux", "screen", "env", "nice", "timeout", "watch", "shell", "submit", "ssh"}
    return bool(programs & {word.rpartition("/")[2] for word in before})


def filled(words: Sequence[str]) -> list[str]:
    """The words, with values of the demo in the place of placeholders."""
    parts = [re.split(r"([,=])", word) for word in words]
    return ["".join(PLACEHOLDERS.get(part, part) for part in one) for one in parts]


def problem_of(words: Sequence[str]) -> str:
    """Say what is wrong about a command of `espo` or `luigi`; nothing if it would be accepted."""
    program, *arguments = filled(words)
    if any("…" in word for word in arguments):
        return "an ellipsis is no argument: write a value of the demo, or a placeholder in capitals"
    return _problem_of_espo(arguments) if program == "espo" else _problem_of_luigi(arguments)


def _problem_of_espo(arguments: list[str]) -> str:
    if "--help" in arguments:
        arguments = arguments[: arguments.index("--help")]
        return "" if not arguments or arguments[0] in cli.espo.commands else f"no command {arguments[0]}"
    try:
        with cli.espo.make_context("espo", list(arguments)) as context:
            name, command, rest = cli.espo.resolve_command(context, [*context._protected_args, *context.args])
            assert command and name
            command.make_context(name, rest, parent=context)
    except click.exceptions.Exit:
        return ""
    except click.ClickException as error:
        return error.format_message()
    return ""


def _problem_of_luigi(arguments: list[str]) -> str:
    told = io.StringIO()
    try:
        with redirect_stderr(told), CmdlineParser.global_instance(arguments) as parsed:
            parsed.get_task_obj()
    except (TaskClassException, ParameterException) as error:
        return str(error)
    except SystemExit as end:
        return (told.getvalue().strip() or str(end)).splitlines()[-1]
    return ""


def module_of(words: Sequence[str]) -> str:
    """The module that a command names; nothing if it names none."""
    return next((after for word, after in itertools.pairwise(words) if word == "--module"), "")


def is_of_a_reader(words: Sequence[str]) -> bool:
    """Whether a command is about a module that its page has the reader write."""
    module = module_of(words)
    return bool(module) and find_spec(module.partition(".")[0]) is None


def missing_files(words: Sequence[str]) -> list[str]:
    """The files of the repository that a command names, and options of its scripts, which are not there."""
    paths = [
        word.partition("::")[0] for word in words if re.fullmatch(r"(tests|benchmarks|docs)/[\w./-]+(::\w+)?", word)
    ]
    lacking = [path for path in paths if not (ROOT / path).exists()]
    for place, path in enumerate(words):
        if path.startswith(("benchmarks/", "docs/")) and path.endswith(".py") and (ROOT / path).is_file():
            text = (ROOT / path).read_text()
            options = [word.partition("=")[0] for word in words[place + 1 :] if word.startswith("--")]
            lacking += [f"{path} {option}" for option in options if f'"{option}"' not in text]
    return lacking


def bash_problem(text: str) -> str:
    """What bash says about the syntax of a block."""
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    return done.stderr.strip()


def without_fences(path: Path) -> str:
    """A page's text without its blocks in fences."""
    return _FENCE.sub("", path.read_text())


def spans_of(path: Path) -> list[str]:
    """The commands of `espo` and `luigi` that stand in a page's prose."""
    prose = without_fences(path)
    spans = [" ".join(span.split()) for span in re.findall(r"(?<!`)`((?:espo|luigi) [^`]+)`(?!`)", prose)]
    return [span.replace("\\|", "|") for span in spans]


# What reads a run, or changes only what is safe in a test's own folder. The others start jobs, take minutes, wait, or
# want a cluster; tests of their own run `explain`, `report` and `perfect-model`.
_FOR_A_FINISHED_RUN = (
    *("cancel", "clean", "detach", "docs", "init", "logs", "make", "plan", "profiles", "publish"),
    *("rules", "script", "status", "tasks", "why"),
)
# Options that wait, or that name a file of the reader's.
_NOT_HERE = frozenset({"--watch", "--follow", "--import", "--box", "--doi-table", "--exported"})


def can_run(words: Sequence[str]) -> bool:
    """Whether a command of `espo` succeeds in the folder of a finished run of the demo, and starts nothing."""
    program, name, *rest = [*words, ""]
    told = {"export": "--plan" in rest, "env": "--requirements" in rest}
    is_ours = program == "espo" and not is_of_a_reader(words) and _NOT_HERE.isdisjoint(rest)
    return is_ours and told.get(name, name in _FOR_A_FINISHED_RUN)


def commands_of(path: Path) -> list[list[str]]:
    """The `espo` and `luigi` commands of a page's blocks, each once."""
    blocks = [block for block in blocks_of(path) if block.has_commands]
    words = [words for block in blocks for line in block.lines() for words in simple_commands(line)]
    return list({tuple(ours): ours for one in words for ours in ours_in(one)}.values())
