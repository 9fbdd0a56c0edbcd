"""The tables that written pages take from the code: `BLOCKS`, by the names in their markers.

A page has a block between two lines of its own, ``<!-- made: NAME -->`` and ``<!-- end made -->``.
``python docs/make_reference.py`` fills the blocks; tests/test_site.py fails if one differs from the code. A link to
another page is written from the folder `docs`, with a slash (``/run/slurm.md``).
"""

from __future__ import annotations

import dataclasses
import os
import re
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from textwrap import indent
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from yaml import safe_load as load_yaml

from espo_luigi.audit.sample import Audit
from espo_luigi.audit.validate import Validation
from espo_luigi.audit.value import Way
from espo_luigi.commands import cli
from espo_luigi.driver import install
from espo_luigi.driver.settings.profile import PROFILES, SiteKeys, packaged_profiles
from espo_luigi.driver.settings.worker_jobs import WORKER_KEYS
from espo_luigi.jobs.bundles import KINDS, Bundling
from espo_luigi.jobs.causes import CAUSES, Consequences, Retry
from espo_luigi.jobs.keys import keys_of
from espo_luigi.jobs.lifecycle.policy import GROWTH
from espo_luigi.jobs.order import JobState
from espo_luigi.jobs.schedulers.slurm import log_pattern
from espo_luigi.methods.base import METHODS
from espo_luigi.methods.usual import threshold_of
from espo_luigi.methods.xsdba import AdjustArguments, TrainArguments, arguments_of
from espo_luigi.overview.plan_text import PlanJson
from espo_luigi.overview.states import StatusJson
from espo_luigi.publication.retractions import Checked
from espo_luigi.report.comparison import Comparison
from espo_luigi.report.reading import RuleFigures
from espo_luigi.science.derivations import DERIVATIONS
from espo_luigi.science.limits import FLAGS, INPUT_PROBLEMS, Flag, arguments_of_flags
from espo_luigi.science.variables import VARIABLES
from espo_luigi.tasks.clean import Leftover
from espo_luigi.tasks.cost import tables
from espo_luigi.tasks.publish import Published

DOCS = Path(__file__).parent
_MARKER = re.compile(r"^( *)<!-- (?:made: *(?P<name>.*?)|end made) *-->$")


def filled(page: Path, text: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    """Return a page's text with its blocks as the code has them, indented as their markers.

    Raises ValueError for an unknown name, and for a marker without its end or an end without its marker.
    """
    lines, open_at = list[str](), ""
    for number, line in enumerate(text.splitlines(), 1):
        where, found = f"{page}, line {number}", _MARKER.match(line)
        if found is None:
            lines += [] if open_at else [line]
            continue
        name = found["name"]
        if (name is None) != bool(open_at):
            expected = f"the end of the block that begins at {open_at}" if open_at else "<!-- made: NAME --> before it"
            raise ValueError(f"{where}: got {line.strip()}; expected {expected}")
        if name is not None:
            if name not in blocks:
                raise ValueError(f"{where}: no block is called {name!r}; expected one of {', '.join(sorted(blocks))}")
            lines += [line, "", indent(from_page(page, blocks[name]()).strip(), found[1]), ""]
        else:
            lines.append(line)
        open_at = where if name is not None else ""
    if open_at:
        raise ValueError(f"{open_at}: the block has no end; expected <!-- end made --> on a line of its own")
    return "\n".join(lines) + "\n"


def from_page(page: Path, text: str) -> str:
    """Return text of Markdown, whose links begin in `docs`, with the links that lead there from a page."""
    folder = page.relative_to(DOCS).parent
    return re.sub(r"\]\(/([^)#]+)", lambda link: f"]({os.path.relpath(link[1], folder)}", text)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; a bar within a cell is escaped."""
    lines = [heads, ["---"] * len(heads), *[[cell.replace("|", "\\|") for cell in row] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def code(value: object) -> str:
    """Return a value as a code span; nothing for an empty text."""
    return f"`{value}`" if str(value) else ""


def sentence(docstring: str | None) -> str:
    """Return the first paragraph of a docstring on one line, with Markdown's code spans."""
    return " ".join((docstring or "").split("\n\n")[0].split()).replace("``", "`")


# Failures


def causes() -> str:
    """The causes of failed jobs, and their consequences."""
    rows = [
        (
            one.words(),
            as_sentence(CAUSES[one].meaning),
            driver_action(CAUSES[one]),
            as_sentence(CAUSES[one].remedy) or "nothing",
        )
        for one in CAUSES
    ]
    return table(["cause", "what it means", "what the driver does", "what to do if it still fails"], rows)


def as_sentence(text: str) -> str:
    """Return a cause's text with a capital, for any scheduler."""
    text = text.format(scheduler="the scheduler", submit="`sbatch` or `qsub`")
    return f"{text[:1].upper()}{text[1:]}".removesuffix(": not retried")


def driver_action(consequences: Consequences) -> str:
    """The consequences of a cause, in words."""
    if consequences.retry is Retry.NEVER:
        return "does not submit it again"
    parts = {
        Retry.CHARGED: "submits it again, up to `retries` times",
        Retry.UNCHARGED: "submits it again, up to `max_uncharged` times in a row, uncharged",
        Retry.FREE: "submits it again, any number of times",
    }
    more = {"memory_bytes": f" with {GROWTH:g} times the memory", "time_minutes": f" with {GROWTH:g} times the time"}
    where = " on another node" if consequences.other_node else ""
    goes_on = "; any number of times, as it was, after new complete blocks" if consequences.goes_on else ""
    return parts[consequences.retry].replace("again", f"again{where}{more.get(consequences.grows, '')}", 1) + goes_on


def problems() -> str:
    """The kinds of problems with raw files."""
    rows = [
        (code(name), kind.meaning, kind.counts, code(kind.effect) + ("" if kind.may_warn else " only"))
        for name, kind in INPUT_PROBLEMS.items()
    ]
    return table(["kind", "what it is", "counts", "by default"], rows)


# Clusters


def profiles() -> str:
    """A tab for each profile of the package: its file, and the file that it extends."""
    return "\n".join(f'=== "{name}"\n\n{indent(profile(name), "    ")}' for name in packaged_profiles())


def profile(name: str) -> str:
    """A profile of the package as a block of YAML."""
    return f"```yaml\n{(PROFILES / f'{name}.yml').read_text().strip()}\n```\n"


def profile_keys() -> str:
    """The keys of a profile besides the scheduler's options."""
    rows = [(code(name), one.help) for name, one in keys_of(SiteKeys).items()]
    return table(["key", "meaning"], rows)


def job_states() -> str:
    """The states of a job, as the docstring of `JobState` has them."""
    body = (JobState.__doc__ or "").split("====\n")[1].rpartition("\n")[0]
    rows = [line.split(maxsplit=1) for line in re.sub(r"\n +(?=[a-z])", " ", body).splitlines()]
    if [name for name, _ in rows] != [one.name for one in JobState]:
        raise ValueError("the docstring of JobState has other states than its code")
    return table(["state", "meaning"], rows)


def worker_jobs() -> str:
    """The entries of `worker_jobs`."""
    rows = [
        (code(name), one.kind.name, one.said_default or (str(one.default) if one.default else ""), one.help)
        for name, one in WORKER_KEYS.items()
    ]
    others = ("any option of `[slurm]` or `[sge]`", "", "the rule's", "`partition`, `account`, `gres`, `setup`, …")
    return table(["entry", "value", "default", "meaning"], [*rows, others])


# What each kind submits for its members, and what it is good for.
_BUNDLES = {
    "steps": (
        "a job with a step for each member (`srun --exclusive`)",
        "filling large nodes, a GPU for each member",
    ),
    "array": ("`sbatch --array=0-n%m`: a job for each member", "many equal tasks, slow `sbatch`"),
    "pilot": (
        "a job whose process has imported everything, and forks a child for each member",
        "short tasks, limits on the number of jobs",
    ),
}


def bundles() -> str:
    """The kinds of bundles, with the logs of a member."""
    rows = [
        (
            code(name) + (" (default)" if name == Bundling().kind else ""),
            *_BUNDLES[name],
            code(log_pattern("slurm_logs", "Train", {"sim_id": "NoLeap"}, name)),
        )
        for name in KINDS
    ]
    return table(["`bundle =`", "what is submitted", "good for", "log of a member, such as"], rows)


# Methods


def method_arguments() -> str:
    """The arguments of xsdba's methods, of training before those of adjusting."""
    meanings = {name: field.description for kind in _ARGUMENTS for name, field in kind.model_fields.items()}
    return table(
        ["argument", "meaning", "methods"],
        [(code(name), meaning or "", methods_with(name)) for name, meaning in meanings.items()],
    )


_ARGUMENTS = (TrainArguments, AdjustArguments)


def methods_with(argument: str) -> str:
    """The methods that take an argument, or the fewer ones that do not."""
    takers = [name for name in METHODS if argument in arguments_of(name, "train") + arguments_of(name, "adjust")]
    others = [code(name) for name in METHODS if name not in takers]
    if len(others) < len(takers):
        return f"all but {', '.join(others)}" if others else "all"
    return ", ".join(map(code, takers))


# Costs


def measured() -> str:
    """The measured cost of each rule, by production."""
    parts = [part for name, one in tables().items() for part in (measured_on(name, one), measured_table(one["rules"]))]
    return "\n".join(f"{part}\n" for part in parts)


def measured_on(production: str, found: Mapping[str, Any]) -> str:
    """Where the costs of a production were measured."""
    cells = " and ".join(f"{count:,}".replace(",", " ") for count in found["cells"])
    return (
        f"Production `{production}`, measured on {found['date']} with {cells} cells (processor: {found['processor']}; "
        f"load of the machine: {found['load']:g}):"
    )


def measured_table(rules: Mapping[str, Mapping[str, float]]) -> str:
    """The cost of a job of each rule, as a line over the values that it makes."""
    names = ("seconds", "seconds_a_million", "mib", "mib_a_million")
    rows = [[code(rule), *(number(found[name]) for name in names)] for rule, found in sorted(rules.items())]
    return table(["rule", "CPU seconds", "more for a million", "MiB", "more for a million"], rows)


def number(value: float) -> str:
    """A number with two or three digits that count."""
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


# Reports


def report_checks() -> str:
    """The flags of products that the report tells."""
    rows = [
        (code(name), flag.title, flag.rank.replace("_", " "), flag_meaning(flag), default_of(name, flag))
        for name, flag in FLAGS.items()
    ]
    return table(["flag", "title in the report", "rank", "what it finds", "threshold without your own"], rows)


def flag_meaning(flag: Flag) -> str:
    """What a flag finds, whatever its threshold; nothing where the title says it."""
    return flag.meaning.format(threshold="the threshold", name="values")


def default_of(name: str, flag: Flag) -> str:
    """The threshold that holds if the configuration gives none."""
    return code(arguments_of_flags().get(name, {}).get("thresh", "") if flag.side else "")


# Exit codes


# The exit codes of `luigi` that luigi.cfg may change, by Luigi's names in [retcode], and its others.
_OF_LUIGI = {
    "task_failed": "a task failed, or `espo cancel` or `espo detach` ended the run",
    "scheduling_error": "nothing could be started",
    "missing_data": "data are missing",
    "already_running": "Luigi's lock is held (`[core] no_lock = true` switches it off)",
    "not_run": "Luigi's scheduler refused a task, or no further process can be started",
    "unhandled_exception": "an unexpected error",
}
_EXIT_CODES = {
    "luigi": {
        "0": "complete, or there was nothing to do",
        "1, 2": "there is no such task or option",
        "130": "stopped by Ctrl-C",
        "143, 129": "stopped by SIGTERM, or by a closed terminal (SIGHUP), which leave the jobs of a cluster running",
    },
    # `espo shell` ends with the code of its shell or command.
    "espo": {
        "0": "complete, or there was nothing to do",
        "1": "failed: the message says why (`plan`: something is blocked; `compare`: they differ; `logs`: no log yet)",
        "2": "the command line is wrong: an unknown command or option, a missing or superfluous argument",
        "130, 143, 129": "stopped, as `luigi` is",
        "141": "the reader of a pipe, such as `head -1`, went away",
    },
    # Its result file says more.
    "a job": {
        "0": "its work is done (also by an earlier start of the same job)",
        "1": "it failed, or another job has its work now; its result or its log says why",
        "140, 143": "it was stopped by SIGUSR2 or SIGTERM: cancelled, preempted, or at its time limit",
    },
}


def exit_codes() -> str:
    """The exit codes of `luigi`, of `espo`, and of jobs."""
    of_luigi = {number: _OF_LUIGI[name] for name, number in install.DEFAULTS["retcode"].items()}
    tables_of = {**_EXIT_CODES, "luigi": {**of_luigi, **_EXIT_CODES["luigi"]}}
    return "\n".join(
        table([f"code of {name if ' ' in name else code(name)}", "meaning"], [*in_order(codes).items()])
        for name, codes in tables_of.items()
    )


def in_order(codes: Mapping[str, str]) -> dict[str, str]:
    """Exit codes by number."""
    return dict(sorted(codes.items(), key=lambda one: int(one[0].split(",")[0])))


# JSON

# What each command prints with `--json`.
PRINTED: Mapping[str, Any] = {
    "catalog": cli.CatalogJson,
    "catalog --check": Checked,
    "clean": list[Leftover],
    "compare": Comparison,
    "explain": Way,
    "explain --sample": Audit,
    "plan": PlanJson,
    "profiles": dict[str, dict[str, Any]],
    "publish": Published,
    "rules": dict[str, cli.RuleJson],
    "status": StatusJson,
    "tasks": list[RuleFigures],
    "validate": Validation,
}
_PLAIN = {str: "text", Path: "text", int: "whole number", float: "number", bool: "true or false", Any: "text or object"}


def json() -> str:
    """The shape of what each command prints with `--json`."""
    return "\n".join(
        f"## espo {name}\n\n{about(kind)}\n\n```text\n{shape(kind)}\n```\n" for name, kind in PRINTED.items()
    )


def about(kind: Any) -> str:
    """The words of a type's docstring about its keys."""
    inner = kind if isinstance(kind, type) and not get_args(kind) else get_args(kind)[-1]
    docstring = (inner.__doc__ or "").split("Attributes\n")[0] if has_keys(inner) else _PROFILES
    return " ".join(docstring.split())


_PROFILES = "The options of each profile, with those that it inherits; all values are text."


def has_keys(kind: Any) -> bool:
    """Whether a type stands for an object with known keys."""
    return is_typeddict(kind) or dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")


def shape(kind: Any, margin: str = "") -> str:
    """A type as JSON has it, with words in place of values."""
    inner, deeper = get_args(kind), f"{margin}  "
    if has_keys(kind):
        lines = [f'{deeper}"{name}": {shape(hint, deeper)}' for name, hint in get_type_hints(kind).items()]
        return "{\n" + ",\n".join(lines) + f"\n{margin}}}"
    origin = get_origin(kind)
    if origin is Literal:
        return " or ".join(f'"{one}"' for one in inner)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if one is type(None) else shape(one, margin) for one in inner)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"{{text: {shape(inner[1], margin)}, …}}"
    if origin is tuple and Ellipsis not in inner:
        return f"[{', '.join(shape(one, margin) for one in inner)}]"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"[{shape(inner[0], margin)}, …]"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(f'"{one.value}"' for one in kind)
    return _PLAIN[kind]


# Citation


def citation() -> str:
    """How to cite the software, in BibTeX, by CITATION.cff."""
    said = load_yaml((DOCS.parent / "CITATION.cff").read_text("utf-8"))
    entries = {
        "title": said["title"],
        "author": " and ".join(f"{{{author['name']}}}" for author in said["authors"]),
        "version": said["version"],
        "note": f"Software under the licence {said['license']}",
    }
    lines = "".join(f"  {name} = {{{text}}},\n" for name, text in entries.items())
    return f"```bibtex\n@software{{{said['title']},\n{lines}}}\n```\n"


# Variables


def variables() -> str:
    """The table of variables."""
    heads = ["variable", "units", "possible", "factors", "bounds", "through", "noise below", "dry below"]
    rows = [
        (
            code(name),
            known.units,
            _limits(*known.possible),
            known.kind,
            _limits(*known.bounds),
            known.transformation or "",
            "" if known.jitter is None else threshold_of(known.jitter, known),
            "" if known.wet is None else threshold_of(known.wet, known),
        )
        for name, known in VARIABLES.items()
    ]
    return table(heads, rows)


def _limits(low: float | None, high: float | None) -> str:
    return "" if low is None else f"{low:.6g} or more" if high is None else f"{low:.6g} to {high:.6g}"


def derivations() -> str:
    """The variables that can be derived."""
    rows = [(code(name), way.words, "yes" if way.of_raw else "") for name, ways in DERIVATIONS.items() for way in ways]
    return table(["variable", "derived as", "of raw data, too"], rows)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "bundles": bundles,
    "causes": causes,
    "citation": citation,
    "derivations": derivations,
    "exit-codes": exit_codes,
    "job-states": job_states,
    "json": json,
    "measured": measured,
    "method-arguments": method_arguments,
    "problems": problems,
    "profile-keys": profile_keys,
    "profiles": profiles,
    "report-checks": report_checks,
    "variables": variables,
    "worker-jobs": worker_jobs,
}
