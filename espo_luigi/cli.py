"""The ``espo`` command: what Luigi's own command does not do."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TextIO

from espo_luigi.driver.signals import end_quietly
from espo_luigi.errors import EspoError, InstallationError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; return the process's exit code."""
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not any([_has_no_reader(stream) for stream in (sys.stdout, sys.stderr)]):
            raise
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt as interrupt:
        end_quietly(interrupt)
        raise


def _run(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except EspoError as error:
        print(f"espo: {error}", file=sys.stderr)
        return 1


def _has_no_reader(stream: TextIO) -> bool:
    """Whether nobody reads `stream` any more (`espo rules | head`); it then goes nowhere, its buffered text, too."""
    poll = select.poll()
    poll.register(stream, 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="espo", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    catalog = commands.add_parser("catalog", help="make a catalogue from a folder of CMIP6-style files")
    catalog.add_argument("folder", type=Path)
    catalog.add_argument(
        "--out", type=Path, required=True, metavar="cat.json", help="the catalogue to write, with its CSV beside it"
    )
    catalog.set_defaults(run=_catalog)

    make = commands.add_parser("make", help="run the task that makes a path")
    make.add_argument("path", type=Path)
    make.add_argument("--workers", type=int, default=500, help="jobs in flight at once")
    make.set_defaults(run=_make)

    rules = commands.add_parser("rules", help="list the rules, their parameters and their outputs")
    rules.set_defaults(run=_rules)

    profiles = commands.add_parser("profiles", help="list the clusters' profiles, with what they set")
    profiles.add_argument("names", nargs="*", metavar="PROFILE", help="only these, by name or path")
    profiles.set_defaults(run=_profiles)

    script = commands.add_parser("script", help="print the sbatch script of a task, and its Dask layout")
    script.add_argument("task", help="such as Train")
    script.add_argument("parameters", nargs=argparse.REMAINDER, help="as luigi takes them: --sim-id … --region …")
    script.add_argument("--module", default="espo_luigi.tasks", help="where the task is defined")
    script.set_defaults(run=_script)

    for how, text in {"cancel": "cancel the jobs of the run here", "detach": "end its driver; its jobs go on"}.items():
        stop = commands.add_parser(how, help=text + " (folder: [espo] workdir of luigi.cfg)")
        stop.set_defaults(run=_stop, how=how)

    clean = commands.add_parser(
        "clean", help="list temporary stores that nothing needs any more, and what killed runs have left half done"
    )
    clean.add_argument("--yes", action="store_true", help="delete them; refused while a driver works there")
    clean.set_defaults(run=_clean)

    env = commands.add_parser(
        "env", help="make this installation again where there is no internet; compile its kernels"
    )
    what = env.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--requirements",
        type=Path,
        nargs="?",
        const=Path("-"),
        metavar="FILE",
        help="write the exact versions of all that is installed and needed to a file, by default print them",
    )
    what.add_argument("--wheelhouse", type=Path, metavar="DIR", help="collect their wheels, the project's own, too")
    what.add_argument("--compile", action="store_true", help="compile the kernels for this kind of processor, once")
    env.set_defaults(run=_env)

    tasks = commands.add_parser("tasks", help="table of the jobs that ran: time, memory, outcome")
    tasks.set_defaults(run=_tasks)

    report = commands.add_parser("report", help="one page about the run, whatever has failed or is not made yet")
    report.add_argument(
        "--out", type=Path, default=Path("report.html"), metavar="report.html", help="the page to write"
    )
    report.set_defaults(run=_report)
    return parser


def _catalog(options: argparse.Namespace) -> int:
    from espo_luigi.catalog import make_catalog

    report = make_catalog(options.folder, options.out)
    print(f"{options.out}: {report.found} file(s)")
    for path, reason in report.unreadable:
        print(f"  not read: {path}: {reason}")
    return 0


def _make(options: argparse.Namespace) -> int:
    from espo_luigi.api import build
    from espo_luigi.tasks.make import task_for

    task = task_for(options.path)
    print(task.label(), file=sys.stderr)
    summary = build([task], workers=options.workers)
    print(summary.text, file=sys.stderr)
    return 0 if summary.succeeded else 1


def _script(options: argparse.Namespace) -> int:
    from luigi.cmdline_parser import CmdlineParser

    from espo_luigi.driver.preview import preview

    with CmdlineParser.global_instance(["--module", options.module, options.task, *options.parameters]) as parsed:
        print(preview(parsed.get_task_obj()), end="")
    return 0


def _stop(options: argparse.Namespace) -> int:
    from espo_luigi.driver.preview import stop_from_outside

    print(stop_from_outside(options.how))
    return 0


def _rules(_options: argparse.Namespace) -> int:
    from espo_luigi.tasks.make import rules, template_of

    for rule in rules():
        print(f"{rule.__name__}: {(rule.__doc__ or '').splitlines()[0]}")
        for name, template in template_of(rule).items():
            print(f"    {name}  {template}")
    return 0


def _profiles(options: argparse.Namespace) -> int:
    from espo_luigi.driver.profile import describe, packaged_profiles

    for name in options.names or packaged_profiles():
        print(describe(name))
    return 0


def _clean(options: argparse.Namespace) -> int:
    from espo_luigi.tasks import clean

    with clean.alone() if options.yes else nullcontext():
        found = clean.leftovers()
        for one in found:
            print(f"{one.size_bytes:>16,}  {one.path}")
            if options.yes:
                clean.delete(one)
    total = f"{len(found)} item(s), {sum(one.size_bytes for one in found):,} bytes"
    print(f"{total} {'deleted' if options.yes else 'can go: `espo clean --yes` deletes them' if found else 'can go'}")
    return 0


def _env(options: argparse.Namespace) -> int:
    from espo_luigi import environment

    try:
        if options.compile:
            print(environment.compile_kernels())
        elif options.wheelhouse:
            print(environment.collect_wheels(options.wheelhouse))
        elif options.requirements == Path("-"):
            print(environment.requirements_text(), end="")
        else:
            print(environment.write_requirements(options.requirements))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InstallationError(str(error)) from error
    return 0


def _tasks(_options: argparse.Namespace) -> int:
    from espo_luigi.driver.settings import settings
    from espo_luigi.report.jobs import job_table

    print(job_table(Path(settings().workdir)))
    return 0


def _report(options: argparse.Namespace) -> int:
    from espo_luigi.tasks.report import write_now

    write_now(options.out.absolute())
    print(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
