"""`espo shell` and `espo submit`: allocations and jobs of Slurm with the options of ``[slurm]`` and its profile.

A shell on a compute node, a script of the user's, or the driver itself as a small job. All take the same options, which
override luigi.cfg and the profile.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from luigi.configuration import get_config

from espo_luigi.driver.install import named_by
from espo_luigi.driver.settings.espo import settings, state_dir
from espo_luigi.driver.settings.sections import slurm as SlurmSection
from espo_luigi.driver.task import SlurmTask
from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.lifecycle.records import RecordStore
from espo_luigi.jobs.resources import JobOptions, Resources, own_names, parse_memory, parse_time
from espo_luigi.jobs.schedulers import SCHEDULERS, slurm
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.driver_job import NOTICE_SECONDS, submit_driver
from espo_luigi.jobs.schedulers.script import ScriptValues, checked, safe
from espo_luigi.jobs.schedulers.slurm import memory_asked, sizes
from espo_luigi.jobs.settings import Site

logger = logging.getLogger(__name__)

# Options of the commands: of luigi.cfg's [slurm], of this job, and Slurm's own.
OPTIONS: Mapping[str, str] = {
    "profile": "name or path of a profile, in place of [slurm] profile",
    "memory": "memory of the job, such as 8GB",
    "time": "time limit, such as 60 (minutes) or 4:00:00",
    "cpus_per_task": "CPUs of the job, by default 1",
    "nodes": "nodes of the job, by default 1",
    **{name: f"Slurm's --{name}" for name in own_names(slurm.OPTIONS) if name not in (*slurm.NOT_SBATCHS, "nodes")},
}
# Patterns of directives in a script that replace a value of [slurm]. CPUs and nodes are left to the script.
_IN_SCRIPT = {"memory": r"--mem(-per-\w+)?[=\s]", "time": r"--time[=\s]|-t"}
# Mostly, a driver waits. Its time is limited by the site, too.
_DRIVERS_MEMORY, _DRIVERS_TIME, _DRIVERS_LEAST_MINUTES = "4GB", "1-00:00:00", 10


@dataclass(frozen=True)
class Request:
    """What one job asks for, and the rules of its site."""

    sizes: Mapping[str, str]
    options: JobOptions
    site: Site

    @property
    def resources(self) -> Resources:
        """The sizes of each node's part."""
        return Resources(1, int(self.sizes["cpus_per_task"]), self.sizes["memory"], self.sizes["time"])


def shell(given: Mapping[str, str], command: Sequence[str]) -> NoReturn:
    """Become `salloc`, which runs a shell or a command inside an allocation.

    Raises
    ------
    SubmissionError
        If this is inside a job already, or there is no `salloc`.
    """
    job_id = slurm.job_id(os.environ)
    if job_id is not None:
        raise SubmissionError(f"this is inside job {job_id} already: give the command itself, or leave the job first")
    request = request_of(given)
    # The options that the environment gives to sbatch, for salloc, too.
    users = {f"SALLOC_{name}": os.environ.get(f"{slurm.USER_VARIABLES}{name}") for name in slurm.USERS_OPTIONS}
    given_there = {name: value for name, value in users.items() if value}
    environ = {**given_there, **os.environ, **request.options.environment}
    words = allocation_command(request, command)
    logger.info("%s", shlex.join(words))
    try:
        os.execvpe(words[0], words, environ)
    except OSError as error:
        raise SubmissionError(f"{words[0]} could not be started: {error}") from error


def allocation_command(request: Request, command: Sequence[str]) -> tuple[str, ...]:
    """Return the `salloc` that an allocation takes."""
    return (
        "salloc",
        *_sizes(request.sizes, request.options),
        "--ntasks-per-node=1",
        *slurm.asked(request.options),
        *command,
    )


def submit(given: Mapping[str, str], words: Sequence[str]) -> str:
    """Submit a script, or ``luigi …``: a driver, as a job that goes on until the run is done; return that in words."""
    if words[0] == "luigi":
        return _submit_driver(given, words[1:])
    script = Path(words[0])
    if not script.is_file():
        raise SubmissionError(f"there is no file {script} to submit; `espo submit luigi …` submits a driver")
    request = request_of(given)
    commands = Commands(slurm, environ={**os.environ, **request.options.environment})
    answer = commands.submit(script_command(request, given, script, words[1:]))
    if not answer.ok:
        raise SubmissionError(f"{script} was not submitted: {answer.words}")
    job_id = commands.id_of(answer)
    return f"{script} is job {job_id}" if job_id else f"{script} was submitted: {answer.words}"


def script_command(
    request: Request, given: Mapping[str, str], script: Path, arguments: Sequence[str]
) -> tuple[str, ...]:
    """Return the `sbatch` of a user's script, whose own sizes stand where the command line has none."""
    directives = " ".join(re.findall(r"^#SBATCH\s+(.*)$", script.read_text(errors="replace"), re.MULTILINE))
    lacking = {name for name, words in _IN_SCRIPT.items() if not re.search(rf"(^|\s)({words})", directives)}
    chosen = given.keys() | lacking
    asked = {name: size for name, size in request.sizes.items() if name in chosen}
    many = ("--ntasks-per-node=1",) if "nodes" in given else ()
    words = [checked("argument", word) for word in (str(script), *arguments)]
    return ("sbatch", "--parsable", *_sizes(asked, request.options), *many, *slurm.asked(request.options), *words)


def _submit_driver(given: Mapping[str, str], arguments: Sequence[str]) -> str:
    request, section = _drivers_request(given), SlurmSection()
    with named_by(arguments) as task:
        # A wrong name or value is an error here, and not in the job.
        if isinstance(task, SlurmTask):
            task.check()
        workdir, folder, alone = Path(settings().workdir), state_dir(), settings().engine not in SCHEDULERS
    RecordStore(folder).check_layout()
    values = ScriptValues(
        name=f"{safe(workdir.name, 40)}.driver",
        attempt=1,
        argv=(request.options.python or sys.executable, "-P", "-m", "luigi", *arguments),
        cpus_per_task=request.resources.cpus_per_task,
        memory_bytes=request.resources.memory_bytes,
        time_minutes=request.resources.time_minutes,
        log_pattern=slurm.log_pattern(str(Path(section.log_dir).absolute()), "driver", {}),
        claim_file="",
        workdir=str(Path.cwd()),
        options=request.options,
    )
    Path(values.log_pattern.replace("%%", "%")).parent.mkdir(parents=True, exist_ok=True)
    job_id = submit_driver(values, folder, Commands(slurm), alone=alone)
    return f"the driver is job {job_id}; its log: {slurm.log_path(values.log_pattern, job_id)}\n" + (
        "`espo cancel` ends it" if alone else "`espo detach` ends it and leaves its jobs, `espo cancel` ends these, too"
    )


def request_of(given: Mapping[str, str]) -> Request:
    """Return the request: from the command line, else [slurm] of luigi.cfg, its profile, and the defaults.

    Raises an `EspoError` for a value that cannot be read.
    """
    engine = settings().engine
    if engine in SCHEDULERS and engine != "slurm":
        own = {"sge": "qrsh or qsub"}.get(engine, SCHEDULERS[engine].SUBMIT)
        raise SubmissionError(
            f"this luigi.cfg says engine = {engine}, and `espo shell` and `espo submit` are Slurm's: on "
            f"{SCHEDULERS[engine].NAME}, give {own} with the options that `espo script` shows"
        )
    sections = dict(SlurmSection.get_params())
    for name, value in given.items():
        if name in sections:
            get_config().set("slurm", name, value.replace("%", "%%"))
    section = SlurmSection()
    asked = Resources(memory=given.get("memory", ""), time=given.get("time", "")).completed(
        section.memory, section.time
    )
    asked_for = {
        "nodes": given.get("nodes", "1"),
        "cpus_per_task": given.get("cpus_per_task", "1"),
        **{name: text for name, text in asked.as_text().items() if name in ("memory", "time")},
    }
    _numbers(asked_for)
    request = Request(asked_for, section.options_of({}, {}), section.site())
    if refusals := request.site.refusals(request.resources, request.options, max_jobs=1):
        raise SubmissionError("; ".join(refusals))
    return request


def _sizes(asked: Mapping[str, str], options: JobOptions) -> list[str]:
    amounts = _numbers(asked)
    cpus = amounts.get("cpus_per_task", 1)
    parts = [memory_asked(options, n, cpus) if name == "memory" else {name: n} for name, n in amounts.items()]
    return [text for part in parts for text in sizes(**part)]


def _numbers(asked: Mapping[str, str]) -> dict[str, int]:
    try:
        counts = {name: int(asked[name]) for name in ("nodes", "cpus_per_task") if name in asked}
    except ValueError as error:
        raise SubmissionError(f"nodes and cpus_per_task are whole numbers: {error}") from error
    if wrong := [f"{name} = {count}" for name, count in counts.items() if count < 1]:
        raise SubmissionError(f"{wrong[0]}; expected at least 1")
    parse = {"memory": parse_memory, "time": parse_time}
    return counts | {name: parse[name](asked[name]) for name in parse if name in asked}


def _drivers_request(given: Mapping[str, str]) -> Request:
    """Return the request of a driver's job; its time is limited by the site."""
    asked = {"memory": _DRIVERS_MEMORY, "time": _DRIVERS_TIME, **given}
    if "time" not in given:
        profile = given.get("profile") or SlurmSection().profile
        own = parse_time(_DRIVERS_TIME)
        asked["time"] = str(min(own, SlurmSection.profile_called(profile).site.limits.get("time", own)))
    request = request_of(asked)
    if request.resources.time_minutes < _DRIVERS_LEAST_MINUTES:
        raise SubmissionError(
            f"time = {asked['time']} is too little for a driver, which is told to stop {NOTICE_SECONDS} s before its "
            f"end: give {_DRIVERS_LEAST_MINUTES} (minutes) or more"
        )
    assert isinstance(request.options, slurm.SlurmOptions)
    extra = {"signal": f"B:TERM@{NOTICE_SECONDS}", **request.options.extra}
    # What its jobs inherit of its environment must not name a folder on its node.
    options = replace(request.options, extra=extra, scratch=None, nodes=request.sizes["nodes"])
    return replace(request, options=options)
