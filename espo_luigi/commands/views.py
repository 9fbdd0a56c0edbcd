"""The commands of `espo` that show a run: before it, and while it goes on."""

from __future__ import annotations

import json
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import click

from espo_luigi.errors import EspoError, as_text
from espo_luigi.redaction import without_secrets

_WATCH_SECONDS = 5.0
# How many of those that words may mean are named.
_SHOWN = 10
_PATH = click.Path(path_type=Path)
module_option = click.option("--module", default="", metavar="NAME", help="A module whose rules are known, too.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


def _set_rerun(_context: object, _option: object, value: str | None) -> None:
    if value:
        from luigi.configuration import get_config

        get_config().set("espo", "rerun", value)


rerun_option = click.option(
    "--rerun",
    type=click.Choice(["missing", "stale"]),
    callback=_set_rerun,
    expose_value=False,
    help="What is made again; [espo] rerun by default.",
)


def completing(module: str, function: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a completion for click: the names that a function of the package returns, imported when click asks."""

    def complete(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        with suppress(EspoError):
            names = getattr(import_module(f"espo_luigi.{module}"), function)()
            return [name for name in names if name.startswith(begun)]
        return []

    return complete


def say(text: object = "", *, end: str = "\n", file: TextIO | None = None) -> None:
    """Print a text for people, with control characters escaped: names and messages may be foreign."""
    print(as_text(str(text)), end=end, file=file)


def say_in_a_line(text: str) -> None:
    """Print a text, cut to the terminal's width."""
    width = line_width()
    say(text if len(text) <= width else f"{text[: width - 1]}…")


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print a value as JSON; without `indent` on one line, which is several times as fast."""
    print(without_secrets(json.dumps(value, indent=indent, default=str)))


def show_plan(ends: Sequence[Any]) -> int:
    """Print what a run of tasks and of those that they need would do, and return the exit code."""
    from espo_luigi.overview import plan_text
    from espo_luigi.overview.plan import plan_of
    from espo_luigi.overview.states import BLOCKED
    from espo_luigi.tasks.all import Selection

    found = plan_of((), Selection(), ends)
    say(plan_text.render_plan(found, width=line_width()))
    return 1 if found.of(BLOCKED) or found.too_large else 0


@click.command(epilog="Example: espo plan --sim-id CanESM5_ssp585 --tasks")
@click.argument("rules", nargs=-1, metavar="[TASK]...")
@click.option("--from", "first", default="", metavar="RULE", help="This rule and those after it only.")
@click.option("--until", default="", metavar="RULE", help="Until this rule.")
@click.option("--only", default="", metavar="RULE", help="This rule only.")
@click.option("--sim-id", default="", metavar="PART,...", help="These simulations only; parts of ids will do.")
@click.option("--pool", default="", metavar="NAME,...", help="These pools of simulations only.")
@click.option("--piece", default="", metavar="NAME,...", help="What is made of these pieces of the land only.")
@click.option("--region", default="", metavar="NAME,...", help="The same as --piece, where pieces are regions.")
@click.option("--module", default="", metavar="NAME", help="A module of rules: a run of all their tasks, not of All.")
@rerun_option
@click.option("--tasks", "each", is_flag=True, help="List the tasks one by one.")
@click.option("--dag", type=click.Choice(["mermaid", "dot"]), help="Print its graph instead, for a program that draws.")
@json_option
def plan(
    rules: tuple[str, ...],
    first: str,
    until: str,
    only: str,
    sim_id: str,
    pool: str,
    piece: str,
    region: str,
    module: str,
    each: bool,
    dag: str | None,
    as_json: bool,
) -> int:
    """What a run would do, why, and what it would cost.

    By default a run of All; TASK names rules until which it would go. The options narrow it, as those of `luigi … All`.
    """
    from espo_luigi.overview import plan_text
    from espo_luigi.overview.dag import NOTATIONS, nodes_of
    from espo_luigi.overview.plan import plan_of
    from espo_luigi.overview.states import BLOCKED
    from espo_luigi.tasks.all import Selection, full_ids
    from espo_luigi.tasks.make import tasks_of

    # The plan itself shows which tasks a changed configuration concerns.
    with _without_warnings_of("espo_luigi.tasks.staleness"):
        pieces = ",".join(filter(None, (piece, region)))
        selection = Selection(first, until, only, full_ids(sim_id), pool, pieces)
        found = plan_of(rules, selection, tasks_of(module) if module else ())
    if dag:
        say(NOTATIONS[dag](nodes_of(found, by_task=selection.is_of_one_simulation)))
    elif as_json:
        print_json(plan_text.as_json(found), indent=None)
    else:
        say(plan_text.render_plan(found, each=each, width=line_width()))
    return 1 if found.of(BLOCKED) or found.too_large else 0


@contextmanager
def _without_warnings_of(name: str) -> Iterator[None]:
    """Silence a logger inside the block, whose warnings the run itself has given, or what is printed tells."""
    import logging

    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(before)


def line_width() -> int:
    """Return the characters that a line may have: those of the terminal, or any number for what reads a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def be_quiet_about_other_parameters() -> None:
    """Silence Luigi's warnings of parameters in luigi.cfg whose classes are not imported, to save time."""
    warnings.filterwarnings("ignore", "The configuration contains the parameter")


@click.command(epilog="Example: espo status --watch")
@click.option("--watch", is_flag=True, help="Show it again every few seconds, until the run ends.")
@json_option
def status(watch: bool, as_json: bool) -> int:
    """How the run here stands, without disturbing it."""
    from espo_luigi.overview import states

    be_quiet_about_other_parameters()
    while True:
        found = states.read()
        if as_json:
            print_json(found)
        else:
            size, is_watched = shutil.get_terminal_size(), watch and found["alive"] and sys.stdout.isatty()
            columns, lines = (size.columns, size.lines - 1) if is_watched else (None, 0)
            if lines:
                click.clear()
            say("\n".join(line[:columns] for line in states.render(found, lines=lines)))
        if not watch or not found["alive"]:
            return 0
        time.sleep(_WATCH_SECONDS)


@click.command(epilog="Example: espo why Train south pr Demo-NoLeap")
@click.argument("words", nargs=-1, required=True, metavar="TASK|PATH|FOLDER [VALUE]...")
@module_option
def why(words: tuple[str, ...], module: str) -> None:
    """What a task waits for, down to the root, and the remedy.

    The task is that of a path, or of a rule and some of its parameters' values, or parts of them. Of a folder, the
    tasks that make its outputs are counted.
    """
    from espo_luigi.overview import why

    say(why.why(words, module))


@click.command(epilog="Example: espo logs Train south pr Demo-NoLeap")
@click.argument("words", nargs=-1, required=True, metavar="TASK [VALUE]...")
@click.option("--lines", default=0, help="The last lines only, so many; 0 for all.  [default: 0]")
def logs(words: tuple[str, ...], lines: int) -> int:
    """Print the logs of a task's jobs.

    The task is that of a rule and some of its parameters' values, or parts of them.
    """
    from espo_luigi.errors import ParameterError
    from espo_luigi.jobs.order import end_of_log
    from espo_luigi.overview.states import traces_like

    be_quiet_about_other_parameters()
    found = traces_like(words)
    if len(found) > 1:
        labels = "".join(f"\n  {one.label}" for one in found[:_SHOWN])
        raise ParameterError(f"{len(found)} jobs are {' '.join(words)}; say more of one, such as of:{labels}")
    paths = found[0].logs()
    for path in paths:
        say(f"==> {path} <==")
        say(end_of_log(path, lines) if lines else path.read_text(errors="replace"), end="\n" if lines else "")
    if not paths:
        say(f"{found[0].label}: no log is there yet", file=sys.stderr)
    return 0 if paths else 1


@click.command(
    epilog="Example: espo explain Demo-NoLeap 46.9 -71.6 2050-07-14 pr",
    context_settings={"ignore_unknown_options": True},  # else, a negative longitude would be an option
)
@click.argument("sim_id", required=False, metavar="[SIM-ID]")
@click.argument("lat", required=False, type=float)
@click.argument("lon", required=False, type=float)
@click.argument("date", required=False)
@click.argument("var", required=False, default="")
@click.option("--plot", type=_PATH, metavar="FILE", help="Draw it, too: .png, .svg or .pdf.")
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="Check so many random cells of all products.")
@click.option("--seed", default=0, show_default=True, help="Chooses the cells and days of --sample.")
@json_option
def explain(
    sim_id: str | None,
    lat: float | None,
    lon: float | None,
    date: str | None,
    var: str,
    plot: Path | None,
    sample: int | None,
    seed: int,
    as_json: bool,
) -> int:
    """Why a value of a product is what it is.

    The value of SIM-ID (a part of the id will do), at LAT and LON in degrees, on DATE (YYYY-MM-DD), of the variable
    VAR or of all. It is made again, from kept stores and raw files, and compared with the product.
    """
    if sample is not None:
        if sim_id is not None or plot is not None:
            raise click.UsageError("--sample takes cells and days of all products: give no others, and no --plot.")
        return _audit(sample, seed, as_json)
    if sim_id is None or lat is None or lon is None or date is None:
        raise click.UsageError("expected SIM-ID, LAT, LON and DATE, or --sample N.")
    from espo_luigi.audit import shown, value
    from espo_luigi.tasks.context import context

    be_quiet_about_other_parameters()
    if plot is not None:
        shown.check_suffix(plot)
    with _without_warnings_of("espo_luigi.science"):
        found = value.way_of(sim_id, lat, lon, date, var)
    if as_json:
        print_json(shown.as_json(found))
    else:
        say(shown.render(found, context().config.table))
    if plot is not None:
        shown.draw(found, plot, context().config.table)
    return 0


def _audit(number: int, seed: int, as_json: bool) -> int:
    from espo_luigi.audit import sample, shown
    from espo_luigi.tasks.context import context

    be_quiet_about_other_parameters()
    with _without_warnings_of("espo_luigi.science"):
        found = sample.audit(number, seed)
    if as_json:
        print_json(shown.as_json(found))
    else:
        say(sample.render(found))
        if context().config.indicators:
            say("not checked: indicators, and statistics of them")
    return 1 if found.differences or found.failures or not found.rows else 0


COMMANDS = (plan, status, why, explain, logs)
