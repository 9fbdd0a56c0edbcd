"""The ``espo`` command: what Luigi's own command does not do."""

from __future__ import annotations

import atexit
import configparser
import gc
import os
import re
import select
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypedDict

import click

from espo_luigi.commands import views
from espo_luigi.commands.docs import docs
from espo_luigi.commands.init import init
from espo_luigi.errors import EspoError, ParameterError, log_as_text, nearest, no_such_rule
from espo_luigi.files import drop_foreign_backend, read_bytes, ready_standard_streams

if TYPE_CHECKING:
    from luigi import Task

# The text of these errors is enough; for all other errors the kind is printed, too.
_EXPECTED = (EspoError, OSError)
_PATH = click.Path(path_type=Path)
_json_option = views.json_option
_workers_option = click.option("--workers", default=500, show_default=True, help="Jobs in flight at once.")
_plan_option = click.option("--plan", is_flag=True, help="Say what would be done, and do nothing.")
_print_json = views.print_json
say = views.say


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; return the process's exit code (`espo docs files` lists them)."""
    ready_standard_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and "--help" not in words:  # the help imports nothing
        import logging

        if logging.lastResort:
            logging.lastResort.addFilter(log_as_text)
    drop_foreign_backend()
    # Else, a plan of 20 000 tasks would take a fifth of its time looking for garbage when the process ends.
    atexit.register(gc.freeze)
    try:
        try:
            return _run(words)
        finally:
            sys.stdout.flush()
    except BrokenPipeError as error:
        if any([_has_no_reader(stream) for stream in (sys.stdout, sys.stderr)]):
            return 128 + signal.SIGPIPE
        return _failed(error, words)
    except KeyboardInterrupt as interrupt:
        from espo_luigi.driver.signals import end_quietly

        end_quietly(interrupt)
        raise


def _run(words: list[str]) -> int:
    # What `espo.main` of click does, but for Ctrl-C and broken pipes, which `main` above has exit codes for.
    asked = f"_{espo.name}_COMPLETE".upper()
    if instruction := os.environ.get(asked):
        from click.shell_completion import shell_complete

        return shell_complete(espo, {}, "espo", asked, instruction)
    try:
        with espo.make_context("espo", list(words)) as context:
            return int(espo.invoke(context) or 0)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        say(_usage(error, words), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        raise
    except Exception as error:
        return _failed(error, words)


def _usage(error: click.ClickException, words: list[str]) -> str:
    """Return a paragraph about a wrong command line, with the nearest option."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    # click names no command where an option lacks its value.
    named = context.command_path if context else next((f"espo {word}" for word in words if word in espo.commands), "")
    command = named or "espo"
    message = error.format_message().rstrip(".")
    if context and isinstance(error, click.NoSuchOption):
        known = [name for option in context.command.get_params(context) for name in option.opts if name[:1] == "-"]
        message = f"there is no option {error.option_name}{nearest(error.option_name, known)}"
    return f"{command}: {message}{'' if message[-1] == '?' else '.'} See `{command} --help`."


def _failed(error: Exception, words: list[str]) -> int:
    if words[:1] == ["--debug"]:
        raise error
    say(f"espo: {error if isinstance(error, _EXPECTED) else _unexpected(error, words)}", file=sys.stderr)
    return 1


def _unexpected(error: Exception, words: list[str]) -> str:
    if isinstance(error, configparser.DuplicateSectionError):
        return f"{error.source}, line {error.lineno}: a second [{error.section}]; join the two sections"
    if isinstance(error, configparser.DuplicateOptionError):
        return f"{error.source}, line {error.lineno}: a second `{error.option}` in [{error.section}]; remove one"
    if isinstance(error, configparser.MissingSectionHeaderError):
        if error.line.startswith("\ufeff"):
            return f"{error.source}: got a byte order mark, expected text in UTF-8 without it: save the file so"
        return f"{error.source}, line {error.lineno}: got {error.line!r}, expected a `[section]` before the first key"
    if isinstance(error, configparser.ParsingError):
        line, got = error.errors[0]
        return f"{error.source}, line {line}: got {got}, expected `key = value`"
    if isinstance(error, ValueError) and (told := _no_text_in_settings()):
        return told
    if isinstance(error, (ValueError, configparser.Error)):
        from espo_luigi.driver.install import wrong_setting

        if wrong := wrong_setting(error):
            return wrong
    return f"{type(error).__name__}: {error} (`{shlex.join(['espo', '--debug', *words])}` shows where in the program)"


def _no_text_in_settings() -> str:
    """Return which luigi.cfg is no text, and where; nothing if all are texts."""
    for path in (os.environ.get("LUIGI_CONFIG_PATH") or "luigi.cfg", "luigi.cfg"):
        content = read_bytes(path) if Path(path).is_file() else b""
        try:
            place = content.decode().find("\0")
        except UnicodeDecodeError as error:
            place = error.start
        if place >= 0:
            line = content.count(b"\n", 0, place) + 1
            return f"{path}, line {line}: got the byte 0x{content[place]:02x}, expected text in UTF-8: save the file so"
    return ""


def _has_no_reader(stream: TextIO) -> bool:
    """Whether no process reads `stream` any more (`espo rules | head`); its text, buffered or not, is then dropped."""
    poll = select.poll()
    poll.register(stream, 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return True


class _SlurmCommand(click.Command):
    """Takes the options of a job on Slurm, which are looked up when they are needed: Luigi takes time to import."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        from espo_luigi.commands.interactive import OPTIONS

        named = [click.Option([f"--{name.replace('_', '-')}"], help=text) for name, text in OPTIONS.items()]
        return [*self.params, *named, *super().get_params(ctx)[len(self.params) :]]


class _OneScreen(click.Group):
    """Has its options in the line of its usage, and so room for all commands on a screen of 24 lines."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without a heading, which would take a line."""
        room = formatter.width - 4 - max(map(len, self.commands))
        listed = sorted(item for item in self.commands.items() if item[0] not in ("docs", "env", "init"))  # named above
        rows = [(name, command.get_short_help_str(room)) for name, command in listed]
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; the error for an unknown command names the nearest."""
        if not args[0].startswith("-") and args[0] not in self.commands:
            ctx.fail(f"there is no command {args[0]}{nearest(args[0], self.commands)}")
        return super().resolve_command(ctx, args)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_text(self.help or "")  # right below the usage

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)

    def get_help(self, ctx: click.Context) -> str:
        """Return the help without empty lines and headings."""
        return super().get_help(ctx).replace("\n\n", "\n").replace("\nCommands:\n", "\n")


@click.group(cls=_OneScreen, options_metavar="[--debug] [--version] [--help]")
@click.version_option(package_name="espo_luigi", message="%(package)s %(version)s")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error; give it first.")
def espo() -> None:
    """New folder: `espo init`. Installation: `espo env`. Manual: `espo docs`."""


class CatalogJson(TypedDict):
    """The catalogue that was written, the number of its files, and files that could not be read, with the reason."""

    catalog: Path
    found: int
    unreadable: dict[str, str]


@espo.command(epilog="Example: espo catalog /data/CMIP6 --out simulation.json")
@click.argument("folder", type=_PATH, required=False)
@click.option("--out", type=_PATH, metavar="FILE", help="The catalogue to write, with its CSV beside it.")
@click.option("--source", default="", metavar="NAME", help="The dataset of files that do not name theirs.")
@click.option(
    "--as",
    "archive",
    metavar="NAME|FILE",
    shell_complete=views.completing("catalog.presets", "packaged"),
    help="What the files are: an archive such as era5-land or e-obs, or a YAML file of yours that describes one.",
)
@click.option(
    "--check", type=_PATH, metavar="LIST", help="Name the products (of FOLDER) made of what a list says is retracted."
)
@_json_option
def catalog(
    folder: Path | None, out: Path | None, source: str, archive: str | None, check: Path | None, as_json: bool
) -> int:
    """Make a catalogue of a folder of CMIP or CORDEX files."""
    if check and not (out or source or archive):
        from espo_luigi.commands.publishing import render_checked
        from espo_luigi.publication.retractions import check as look_up
        from espo_luigi.tasks.publish import default_folder

        checked = look_up(check, (folder or default_folder()).absolute())
        _print_json(asdict(checked)) if as_json else say(render_checked(checked))
        return 1 if checked.found or checked.unchecked else 0
    if check or folder is None or out is None:
        raise click.UsageError("expected FOLDER and --out FILE, or --check LIST without --out, --source and --as.")
    from espo_luigi.catalog import make_catalog
    from espo_luigi.catalog.presets import load_preset

    report = make_catalog(folder, out, source, load_preset(archive) if archive else None)
    if as_json:
        unreadable = {str(path): reason for path, reason in report.unreadable}
        _print_json(CatalogJson(catalog=out, found=report.found, unreadable=unreadable))
    else:
        lines = [f"  not read: {path}: {reason}" for path, reason in report.unreadable]
        say("\n".join([f"{out}: {report.found} file(s)", *lines]))
    return 0


def _built(tasks: Sequence[Task], workers: int) -> int:
    """Run tasks, with all that they need; return the exit code."""
    from espo_luigi.api import build

    summary = build(tasks, workers=workers)
    say(summary.text, file=sys.stderr)
    return 0 if summary.succeeded else 1


@espo.command(epilog="Example: espo make espo-demo/final/reference/Demo-Land+south+noleap.zarr")
@click.argument("path", type=_PATH)
@views.module_option
@_workers_option
def make(path: Path, module: str, workers: int) -> int:
    """Run the task that makes a path, and all that it needs."""
    from espo_luigi.tasks.make import task_for

    task = task_for(path, module)
    say(task.label(), file=sys.stderr)
    return _built([task], workers)


@espo.command(epilog="Example: espo export --drs cordex-adjust netcdf")
@click.argument("folder", type=_PATH)
@click.option(
    "--drs",
    default="",
    metavar="NAME|FILE",
    shell_complete=views.completing("export.drs", "packaged"),
    help="How files are named, described and cut; by default as the run's workflow does.",
)
@click.option("--sim-id", default="", metavar="PART,...", help="These simulations only; parts of ids will do.")
@views.rerun_option
@_plan_option
@_workers_option
def export(folder: Path, drs: str, sim_id: str, plan: bool, workers: int) -> int:
    """Write the products as NetCDF files, below FOLDER.

    Each variable of each simulation is a task: what is missing is made first, and what is there stays.
    """
    from espo_luigi.tasks.export import every_export

    task = every_export(folder, drs, sim_id)
    return views.show_plan(task.deps()) if plan else _built([task], workers)


@espo.command("perfect-model", epilog="Example: espo perfect-model --truth MPI-ESM1-2-HR")
@click.option(
    "--truth", "truths", multiple=True, metavar="ID", help="A simulation that is the truth, or reference; all in turn."
)
@views.rerun_option
@_plan_option
@_workers_option
def perfect_model(truths: tuple[str, ...], plan: bool, workers: int) -> int:
    """Test the adjustment on a future that is known."""
    from espo_luigi.tasks.perfect_model import tasks_for

    tasks = tasks_for(truths)
    if plan:
        return views.show_plan(tasks)
    failed = _built(tasks, workers)
    for task in () if failed else tasks:
        say(task.out_page().path)
    return failed


class RuleJson(TypedDict):
    """A rule: what it makes, and the templates of its files by port."""

    does: str
    files: Mapping[str, Path]


@espo.command(epilog="Example: espo rules Train")
@click.argument("names", nargs=-1, metavar="[RULE]...")
@views.module_option
@_json_option
def rules(names: tuple[str, ...], module: str, as_json: bool) -> None:
    """List the rules, or the files of those named."""
    from espo_luigi.tasks.make import rules, template_of
    from espo_luigi.tasks.ports import wildcard_names

    known = {rule.__name__: rule for rule in rules(module)}
    for name in names:
        if name not in known:
            raise ParameterError(no_such_rule(name, known))
    if as_json:
        shown = {name: known[name] for name in names or known}
        return _print_json({name: RuleJson(does=_does(rule), files=template_of(rule)) for name, rule in shown.items()})
    for name in names:
        say(f"{name}: {_does(known[name])}")
        for port, template in template_of(known[name]).items():
            say(f"    {port}  {template}")
    if names:
        return
    table = [("rule", "parameters", "what it makes")]
    table += [(name, " ".join(wildcard_names(rule)), _RULE.sub("", _does(rule))) for name, rule in known.items()]
    left, middle = (max(map(len, column)) + 2 for column in list(zip(*table, strict=True))[:2])
    for name, parameters, makes in table:
        views.say_in_a_line(f"{name:<{left}}{parameters:<{middle}}{makes}")


# What the docstrings of this package's rules begin with; those of a user's module may begin in another way.
_RULE = re.compile(r"^Rule `\w+`[^:]*: ")


def _does(rule: type) -> str:
    return (rule.__doc__ or "").splitlines()[0]


@espo.command(epilog="Example: espo profiles narval")
@click.argument(
    "names",
    nargs=-1,
    metavar="[PROFILE]...",
    shell_complete=views.completing("driver.settings.profile", "packaged_profiles"),
)
@_json_option
def profiles(names: tuple[str, ...], as_json: bool) -> None:
    """List the clusters' profiles, or those named."""
    from espo_luigi.driver.settings.profile import describe, packaged_profiles, values_of

    shown = names or packaged_profiles()
    if as_json:
        return _print_json({name: values_of(name) for name in shown})
    for name in shown:
        say(describe(name))


@espo.command(
    epilog="Example: espo script RefDefault --region south --memory 60GB",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
)
@click.argument("task")
@click.argument("parameters", nargs=-1, type=click.UNPROCESSED)
@click.option("--module", default="espo_luigi.tasks", show_default=True, help="Where the task is defined.")
def script(task: str, parameters: tuple[str, ...], module: str) -> None:
    """Print the job script of a task, and its Dask layout.

    PARAMETERS are the task's, as luigi takes them; `espo script TASK --help` lists them.
    """
    from espo_luigi.driver.install import preview_of

    say(preview_of(["--module", module, task, *parameters]), end="")


@espo.command(epilog="Example: espo cancel")
def cancel() -> None:
    """Cancel the jobs of the run here.

    The run is the one of the folder that `[espo] workdir` of luigi.cfg names.
    """
    _stop("cancel")


@espo.command(epilog="Example: espo detach")
def detach() -> None:
    """End the driver of the run here; its jobs go on.

    The run is the one of the folder that `[espo] workdir` of luigi.cfg names. The next driver takes its jobs over.
    """
    _stop("detach")


def _stop(how: str) -> None:
    from espo_luigi.driver.run import stop_from_outside

    views.be_quiet_about_other_parameters()
    say(stop_from_outside(how))


@espo.command(epilog="Example: espo clean --yes")
@click.option("--yes", is_flag=True, help="Delete them; refused while a driver works there.")
@_json_option
def clean(yes: bool, as_json: bool) -> None:
    """List what nothing needs any more, or delete it.

    These are temporary stores, and what killed runs have left half done.
    """
    from espo_luigi.tasks import clean

    with clean.alone() if yes else nullcontext():
        found = clean.leftovers()
        for one in found:
            if not as_json:
                say(f"{one.size_bytes:>16,}  {one.path}")
            if yes:
                clean.delete(one)
    if as_json:
        return _print_json([asdict(replace(one, deleted=yes)) for one in found])
    total = f"{len(found)} item(s), {sum(one.size_bytes for one in found):,} bytes"
    say(f"{total} {'deleted' if yes else 'can go: `espo clean --yes` deletes them' if found else 'can go'}")


@espo.command(epilog="Example: espo env --wheelhouse wheels")
@click.option(
    "--requirements",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Write the exact versions of all installed packages to a file, by default print them.",
)
@click.option(
    "--wheelhouse", type=_PATH, metavar="DIR", help="Collect the wheels of the project and of all that it requires."
)
@click.option("--compile", is_flag=True, help="Compile the kernels for this kind of processor, once.")
def env(requirements: str | None, wheelhouse: Path | None, compile: bool) -> None:
    """Make this installation again elsewhere, or compile it.

    Give one of the options.
    """
    from espo_luigi.commands import environment

    if sum(map(bool, (requirements, wheelhouse, compile))) != 1:
        raise click.UsageError("expected one of --requirements, --wheelhouse and --compile.")
    if requirements == "-":
        say(environment.requirements_text(), end="")
    elif requirements:
        say(environment.write_requirements(Path(requirements)))
    elif wheelhouse:
        say(environment.collect_wheels(wheelhouse))
    else:
        say(environment.compile_kernels())


@espo.command(
    cls=_SlurmCommand,
    epilog="Example: espo shell --profile iq-gpu --time 60 -- nvidia-smi",
    context_settings={"allow_interspersed_args": False},
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def shell(command: tuple[str, ...], **options: str | None) -> None:
    """Open a shell, or run a command, on a node (salloc)."""
    from espo_luigi.commands.interactive import shell

    views.be_quiet_about_other_parameters()
    shell(_given(options), command)


@espo.command(
    cls=_SlurmCommand,
    epilog="Example: espo submit luigi --module espo_luigi.tasks All --local-scheduler",
    context_settings={"allow_interspersed_args": False},
)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="FILE [ARGUMENTS]...")
def submit(words: tuple[str, ...], **options: str | None) -> None:
    """Submit a script (sbatch), or a driver as a job.

    FILE is the script, or `luigi` with what you would give to it: the job goes on until the run is done.
    """
    from espo_luigi.commands.interactive import submit

    views.be_quiet_about_other_parameters()
    say(submit(_given(options), words))


def _given(options: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}


@espo.command(epilog="Example: espo tasks --json")
@_json_option
def tasks(as_json: bool) -> None:
    """Table of the jobs that ran: time, memory, failures."""
    from espo_luigi.driver.settings.espo import settings
    from espo_luigi.report.reading import job_table, rule_figures

    views.be_quiet_about_other_parameters()
    workdir = Path(settings().workdir)
    if as_json:
        return _print_json([asdict(one) for one in rule_figures(workdir)])
    say(job_table(workdir))


@espo.command(epilog="Example: espo publish --stac --datacite")
@click.option("--catalog", is_flag=True, help="The catalogue of the products only.")
@click.option("--crate", is_flag=True, help="The file that says where each product comes from only.")
@click.option(
    "--stac",
    is_flag=False,
    flag_value="",
    metavar="[FOLDER]",
    help="A static STAC catalogue of the simulations, by default in the folder stac of the products.",
)
@click.option("--exported", type=_PATH, metavar="FOLDER", help="Its NetCDF files: a folder made by espo export.")
@click.option(
    "--href", multiple=True, metavar="URL", help="Where the products' folder is online; further ones are mirrors."
)
@click.option(
    "--datacite",
    is_flag=False,
    flag_value="",
    metavar="[FILE]",
    help="Relations to the inputs, for DataCite and Zenodo, by default in datacite.json beside the products.",
)
@click.option("--doi-table", type=_PATH, metavar="CSV", help="The inputs' DOIs: columns pattern (of ids) and doi.")
@click.option("--released", is_flag=True, help="Refuse files that no RELEASE.json of espo validate covers.")
@_json_option
def publish(catalog: bool, crate: bool, as_json: bool, **asked: Any) -> None:
    """Write the products' catalogue and provenance.

    The catalogue of intake-esm and xscen is that of `paths.project_catalog`, in which others' rows stay; provenance is
    the RO-Crate `ro-crate-metadata.json` in the folder of the products. With --stac or --datacite, only these are
    written, unless --catalog or --crate is given, too.
    """
    from espo_luigi.commands.publishing import relations_file, render_published, stac_options
    from espo_luigi.tasks.publish import publish

    stac = stac_options(asked["stac"], asked["exported"], asked["href"])
    relations = relations_file(asked["datacite"], asked["doi_table"])
    by_default = not (catalog or crate or stac or relations)
    done = publish(
        with_catalogue=catalog or by_default,
        with_crate=crate or (None if by_default else False),
        stac=stac,
        relations=relations,
        doi_table=asked["doi_table"],
        released=asked["released"],
    )
    if as_json:
        return _print_json(asdict(done))
    say(render_published(done))


@espo.command(epilog="Example: espo validate espo-demo/final --release 1.0")
@click.argument("final", type=_PATH)
@click.option("--release", metavar="VERSION", help="Write RELEASE.json beside them, if all checks pass.")
@click.option("--sign", "key", type=_PATH, help="A private key of ssh-keygen, by which the release is signed.")
@_json_option
def validate(final: Path, release: str | None, key: Path | None, as_json: bool) -> int:
    """Check finished products, before their release.

    FINAL is a folder of products, one archive, or a folder of NetCDF files.
    """
    from espo_luigi.audit import validate as checks

    if key and release is None:
        raise click.UsageError("--sign needs --release.")
    views.be_quiet_about_other_parameters()
    found = checks.validate(final, lambda line: say(line, file=sys.stderr), release, key)
    _print_json(asdict(found)) if as_json else say(checks.render(found))
    return 1 if found.refused or any(check.verdict == "failed" for check in found.checks) else 0


@espo.command(epilog="Example: espo report --out report.html")
@click.option("--out", type=_PATH, default="report.html", show_default=True, help="The page to write.")
def report(out: Path) -> None:
    """Write a page about the run, complete or not."""
    from espo_luigi.tasks.report import write_now

    write_now(out.absolute())
    say(out)


@espo.command(epilog="Example: espo compare final-1 final-2 --out compare.html")
@click.argument("a", type=_PATH, metavar="A")
@click.argument("b", type=_PATH, metavar="B")
@click.option("--out", type=_PATH, default="compare.html", show_default=True, help="The page to write.")
@_json_option
def compare(a: Path, b: Path, out: Path, as_json: bool) -> int:
    """Say by how much two productions differ, where and why.

    A and B are folders of finished products, or two archives.
    """
    from espo_luigi.replacing import check_ours
    from espo_luigi.report import comparison
    from espo_luigi.store.marker import marked

    check_ours(out.absolute(), marked(out))
    found, maps = comparison.compare(a, b, lambda line: say(line, file=sys.stderr))
    comparison.write_page(found, maps, out.absolute(), a, b)
    _print_json(asdict(found)) if as_json else say("\n".join([*comparison.render(found), str(out)]))
    return 0 if found.is_equal else 1


for _command in (init, docs, *views.COMMANDS):
    espo.add_command(_command)


if __name__ == "__main__":
    sys.exit(main())
