"""Grid Engine as a `base.Scheduler`, which describes the functions without a docstring: options, scripts, commands.

The options stand in the script's ``#$`` lines, so that it can be read and submitted by hand. qsub gets them as
arguments, too, and ignores the lines (``-C ""``), as the user's bash may hold such lines.
"""

from __future__ import annotations

import contextlib
import functools
import html
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.keys import key
from espo_luigi.jobs.resources import MIB, JobOptions, mib
from espo_luigi.jobs.schedulers.base import (
    Found,
    Phase,
    Query,
    Refusal,
    Row,
    Usage,
    bytes_of,
    chunked,
    warn_of_unknown_state,
)
from espo_luigi.jobs.schedulers.script import (
    VARIABLE_NAME,
    ScriptValues,
    checked,
    log_stem,
    positive,
    render_script,
    safe,
    shell_text,
)

NAME = "Grid Engine"
SUBMIT = "qsub"
# JOB_ID is not among these, as other programs use that name, too.
VARIABLES = "SGE_TASK_"
USER_VARIABLES = ""
SCRATCH = "$TMP"
# A site's `qsub` may drop ``-terse``.
ID_FORMS: tuple[str, ...] = (r"\bYour job(?:-array)? (\d+)[ .]", r"^\s*(\d+)(?:\.\d+-\d+:\d+)?\s*$")
CANCEL: tuple[str, ...] = ("qdel",)
HAS_ENDED: tuple[str, ...] = ("does not exist",)
NO_ACCOUNTING = ""
WITHOUT_ACCOUNTING = "no accounting (%s): how a job has ended that left no result is not known"
INSTEAD_OF_ACCOUNTING: Query[Row] | None = None
# Grid Engine takes a queue, not a host, out of use, and says so in the job's reason.
DRAINED: Query[str] | None = None

# Each run of qacct reads the whole accounting file: for more jobs than this, a single run asks for all similar names.
_MOST_BY_ID = 3
# The variable that tells a job its memory in MiB, as Grid Engine does not.
_MEMORY_VARIABLE = "ESPO_MEMORY_MIB"
_ENVIRONMENT = Path(__file__).with_name("environment.sh")
_OPTION = re.compile(r"[a-zA-Z_]+", re.ASCII)
_RESOURCE = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
# The variables that Grid Engine or the shell sets for each job, by name or by prefix.
_OF_EACH_JOB = frozenset(
    {"ARC", "ENVIRONMENT", "HOSTNAME", "NHOSTS", "NQUEUES", "NSLOTS", "PE", "PE_HOSTFILE", "QUEUE", "REQUEST"}
    | {"RESTARTED", "TMP", "TMPDIR", "CUDA_VISIBLE_DEVICES", _MEMORY_VARIABLE}
    | {"PWD", "OLDPWD", "SHLVL", "_", "IFS", "UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "POSIXLY_CORRECT"}
)
_PREFIXES = (
    *("JOB_", "SGE_O_", "SGE_STD", "SGE_TASK_", "SGE_CKPT_", "SGE_CWD_", "SGE_JOB_"),
    *("SGE_BINARY_", "SGE_BINDING", "SGE_ARCH", "SGE_HGR_"),
)
_HOST = re.compile(r"[\w.-]+", re.ASCII)
# Options that the engine itself sets, or that would make a submission more than a single job with a single command.
_RESERVED = frozenset(
    {"@", "C", "N", "S", "V", "b", "ckpt", "clear", "cwd", "e", "h", "help", "i", "j", "now", "notify", "o", "r"}
    | {"sync", "t", "tc", "terse", "verify", "wd"}
)


@dataclass(frozen=True)
class SgeOptions(JobOptions):
    """Options of Grid Engine that are keys of luigi.cfg and parameters of tasks; no other list of them exists.

    `memory_resource` is the site's name for the memory of a job (``none``: ask for no memory). `memory_per` says
    whether an amount is for each ``slot`` or for the ``job``. ``extra = {"l": "mem_free=4G"}`` asks for further
    resources.
    """

    queue: str | None = key(None, "qsub's `-q`")
    parallel_environment: str = key("threaded", "of jobs with several CPUs; its allocation_rule has to be $pe_slots")
    project: str | None = key(None, "qsub's `-P`")
    memory_resource: str = key("h_vmem", "name of memory in a job's request; none: jobs ask for none")
    memory_per: str = key("slot", "whether the request for memory is for each slot or for the whole job (slot, job)")


OPTIONS = SgeOptions
# The options of qsub that have a field.
FLAGS = {"q": "queue", "pe": "parallel_environment", "P": "project"}


def log_pattern(log_dir: str, rule: str, wildcards: Mapping[str, str], bundle: str = "", task: int = 0) -> str:
    """Return ``{log_dir}/{rule}/{rule}-{wildcards}-$JOB_ID.out`` without characters that qsub or file names refuse."""
    return f"{log_dir}/" + f"{safe(rule, 60)}/{log_stem(rule, wildcards, '+')}-$JOB_ID.out".replace(",", "+")


def log_path(pattern: str, job_id: str) -> str:
    return pattern.replace("$JOB_ID", job_id)


def forgets_cancelled(job_id: str) -> bool:
    return True


def arguments(values: ScriptValues) -> tuple[str, ...]:
    """Return the job's options as arguments of qsub, in a fixed order. Raises SubmissionError."""
    options = SgeOptions(**vars(values.options))
    cpus = positive("cpus_per_task", values.cpus_per_task)
    mine = [
        *("-N", sge_name(values.name)),
        *("-o", _path("log path", values.log_pattern, r"\$(?!JOB_ID\.out$)|[,:]")),
        *("-j", "y", "-S", "/bin/bash", "-cwd", "-r", "y", "-notify"),
        *(("-pe", _word("parallel_environment", options.parallel_environment), str(cpus)) if cpus > 1 else ()),
        *(("-q", _word("queue", options.queue)) if options.queue else ()),
        *(("-P", _word("project", options.project)) if options.project else ()),
        *("-l", ",".join(_resources(values, options, cpus))),
    ]
    _path("work folder", values.workdir, r"\$")
    # -w e: refuse a job that no queue can ever run, instead of letting it wait for ever; load values do not count.
    check = () if "w" in options.extra else ("-w", "e")
    return (*mine, *check, *(word for name, value in options.extra.items() for word in _extra(name, value, options)))


def _path(what: str, path: str, forbidden: str) -> str:
    found = re.search(forbidden, path)
    if found:
        # qsub replaces variables in paths, takes the text before a colon for a host, and a comma for the next path.
        raise SubmissionError(
            f"{what}: {path!r} holds {found.group()!r}, which qsub reads as its own: use another folder"
        )
    return checked(what, path)


def _word(what: str, value: str) -> str:
    if value.startswith("-") or not value:
        raise SubmissionError(f"{what}: {value!r} is not a name that qsub takes")
    return checked(what, value)


def _resources(values: ScriptValues, options: SgeOptions, cpus: int) -> list[str]:
    asked = [f"h_rt={60 * positive('time_minutes', values.time_minutes)}"]
    if options.memory_resource != "none":
        if not _RESOURCE.fullmatch(options.memory_resource):
            raise SubmissionError(
                f"memory_resource: {options.memory_resource!r} is not a resource's name, such as h_vmem"
            )
        if options.memory_per not in ("slot", "job"):
            raise SubmissionError(f"memory_per: {options.memory_per!r}; expected 'slot' or 'job'")
        amount = -(-mib(positive("memory", values.memory_bytes)) // (cpus if options.memory_per == "slot" else 1))
        # Grid Engine refuses ``64GB``.
        asked.append(f"{options.memory_resource}={f'{amount}M' if amount % 1024 else f'{amount // 1024}G'}")
    for name in options.exclude:
        if not _HOST.fullmatch(name):
            raise SubmissionError(f"exclude: {name!r} is not a host's name; Grid Engine knows no lists such as n[1-3]")
    return [*asked, f"h=!({'|'.join(options.exclude)})"] if options.exclude else asked


def _extra(name: str, value: str, options: SgeOptions) -> tuple[str, ...]:
    if not _OPTION.fullmatch(name):
        raise SubmissionError(f"extra: {name!r} is not an option of qsub without its dash, such as 'l' or 'hold_jid'")
    if name in _RESERVED:
        raise SubmissionError(f"extra: -{name} is set by the engine, or would make one submission more than one job")
    if name in FLAGS:
        raise SubmissionError(f"extra: -{name} has an option of its own: give it as {FLAGS[name]!r}")
    if name == "l":
        # The second request for a resource would win, escape the site's limits, and never grow.
        own = {"h_rt": "time", options.memory_resource: "memory", "h": "exclude", "hostname": "exclude"}
        for resource in (part.partition("=")[0].strip() for part in value.split(",")):
            if resource in own:
                raise SubmissionError(f"extra: l: {resource} is asked for by `{own[resource]}`: give it there")
    return (f"-{name}", checked(name, value)) if value else (f"-{name}",)


def render(values: ScriptValues) -> str:
    # A site's defaults may make any job an array (sge_request: -t), whose tasks share the id.
    owner = "$JOB_ID.${SGE_TASK_ID:-undefined}\njob_id=${job_id%.undefined}"
    return render_script(values, header(values), owner)


def header(values: ScriptValues) -> list[str]:
    file = checked("environment file", values.environment_file)
    return [
        *(f"#$ {line}" for line in _lines(arguments(values))),
        *([f"environment_file={shlex.quote(file)}", *shell_text(_ENVIRONMENT).splitlines()] if file else ()),
        # Before it suspends a job, Grid Engine sends SIGUSR1 to all its processes, which would end Dask's workers.
        "trap '' USR1",
        f"export {_MEMORY_VARIABLE}={mib(positive('memory', values.memory_bytes))}",
    ]


def _lines(words: Sequence[str]) -> list[str]:
    """Return lines of an option with its values, quoted as qsub reads its ``#$`` lines."""
    lines: list[str] = []
    for word in words:
        if re.fullmatch(r"-[a-zA-Z_]+", word):
            lines.append(word)
        else:
            # qsub reads double quotes, but not several kinds of quotes in a row, as `shlex` would make.
            lines[-1] += f' "{word}"' if "'" in word and '"' not in word else f" {shlex.quote(word)}"
    return lines


def submit_command(values: ScriptValues, script: Path) -> tuple[str, ...]:
    return ("qsub", "-terse", "-C", "", "-b", "n", "-sync", "n", *arguments(values), str(script))


def by_id(job_ids: Sequence[str]) -> list[Query[Row]]:
    # With -j, qstat ignores what else sge_qstat asks for, such as ``-q`` or ``-g c``.
    return [
        Query(("qstat", "-xml", "-j", ",".join(ids)), parse_qstat_j, ("<unknown_jobs",)) for ids in chunked(job_ids)
    ]


def one_job(job_id: str) -> Query[Row]:
    """Ask for all jobs of this user, the job among them; Grid Engine estimates no start."""
    return LISTING


def accounting(job_ids: Sequence[str], names: Sequence[str], known_names: Sequence[str] = ()) -> list[Query[Row]]:
    """Ask for jobs that have ended in the accounting file, which may be written late."""
    return _qacct(job_ids, names, known_names, parse_qacct)


def usage(job_ids: Sequence[str], names: Sequence[str]) -> list[Query[Usage]]:
    return _qacct(job_ids, (), names, parse_usage)


def _qacct(
    job_ids: Sequence[str], names: Sequence[str], known_names: Sequence[str], parse: Callable[[str], list[Found]]
) -> list[Query[Found]]:
    """Ask for each job by id or by name, or for all whose names share the beginning of these names."""
    jobs = [*job_ids, *map(sge_name, names)]
    if len(jobs) > _MOST_BY_ID:
        # The file may hold a year's runs, too many to be read for each job in each cycle.
        beginning = os.path.commonprefix([*names, *known_names])  # noqa: RUF071  # character by character
        jobs = [sge_name(beginning) + "*"]
    return [Query(("qacct", "-j", job), parse, NO_JOB) for job in jobs]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of Grid Engine's commands, which a submission hands on to the job."""
    # A driver in a job may have these from its parallel environment, which its own jobs need not have.
    kept = {key: value for key, value in environ.items() if key not in ("PE", "PE_HOSTFILE")}
    return {**kept, "LC_ALL": "C.UTF-8"}


def environment_script(environ: Mapping[str, str]) -> str:
    """Return lines of bash that give a job this environment: with ``-V``, qstat would show it to every user."""
    names = sorted(name for name in environ if VARIABLE_NAME.fullmatch(name) and name not in _OF_EACH_JOB)
    return "".join(f"export {name}={_quoted(environ[name])}\n" for name in names if not name.startswith(_PREFIXES))


def _quoted(value: str) -> str:
    with contextlib.suppress(UnicodeEncodeError):
        value.encode()
        return shlex.quote(value)
    return "$'" + "".join(f"\\x{byte:02x}" for byte in os.fsencode(value)) + "'"


def job_id(environ: Mapping[str, str]) -> str | None:
    return environ.get("JOB_ID") if "SGE_TASK_ID" in environ else None


def given(environ: Mapping[str, str]) -> dict[str, int]:
    names = {"cpus_per_task": ("NSLOTS", 1), "memory_bytes": (_MEMORY_VARIABLE, MIB)}
    return {what: int(environ[name]) * unit for what, (name, unit) in names.items() if name in environ}


# From here on: what its commands answer, as those of 8.1.9 do.

# qacct fails with one of these if it has no such job (yet), or no job at all. Its file is written some seconds after
# the end of a job.
NO_JOB = ("not found", "no jobs running since startup", "unable to open")
_PREFIX = "espo."
_JOB = re.compile(r"<job_list\b.*?</job_list>", re.DOTALL)
_FIELD = re.compile(r"<(\w+)>([^<]*)</\1>")
# The meaning of the letters in qstat's state. The first entry with a letter of the state wins.
_LETTERS: tuple[tuple[str, Phase], ...] = (
    ("d", Phase.LEAVING),  # is being deleted
    ("q", Phase.PENDING),
    ("sSTNP", Phase.SUSPENDED),  # by its user, with its queue, by a threshold, preempted
    ("rt", Phase.RUNNING),
)
_KNOWN = "hREwz"


def sge_name(name: str) -> str:
    """Convert a submission's name for Grid Engine, which refuses a leading digit and at signs."""
    return _PREFIX + name.replace("@", "%40")


def _name(job: str) -> str:
    return job.removeprefix(_PREFIX).replace("%40", "@")


def parse_qstat(text: str) -> list[Row]:
    """Read the answer of ``qstat -xml``. Raises ValueError if the answer is not whole."""
    if not text.rstrip().endswith("</job_info>"):
        raise ValueError(f"the end is missing: {text[-80:]!r}")
    # By patterns, as the strange name of a single job would make the whole answer invalid XML.
    rows = [_listed(dict(_FIELD.findall(job))) for job in _JOB.findall(text)]
    # Of an array, the task that has come furthest is last, and counts.
    return sorted(rows, key=lambda row: row.phase is not Phase.PENDING)


# The letters of a state for the bits of `JAT_status`; a task that waits has none of them, or no status.
_BITS = (0x400, "d"), (0x100, "s"), (0x200, "t"), (0x80, "r")


def parse_qstat_j(text: str) -> list[Row]:
    """Read the answer of ``qstat -xml -j``. Raises ValueError if the answer is not whole."""
    if not text.rstrip().endswith(("</detailed_job_info>", "</unknown_jobs>")):
        raise ValueError(f"the end is missing: {text[-80:]!r}")
    rows = []
    for job in text.split("<JB_job_number>")[1:]:
        name = re.search("<JB_job_name>([^<]*)<", job)
        bits = [int(status) for status in re.findall(r"<JAT_status>(\d+)<", job)]
        # Of an array, the task that has come furthest.
        states = ["".join(letter for bit, letter in _BITS if status & bit) for status in bits]
        state = next(filter(None, states), "qw")
        if name is not None:
            rows.append(Row(job.partition("<")[0], _name(html.unescape(name[1])), state, phase_of(state)))
    return rows


# Grid Engine lists no ended jobs for long. qstat takes no number for a user. With `$user` it finds out itself who asks.
# -s a: a user's defaults may hide states.
LISTING: Query[Row] = Query(("qstat", "-xml", "-s", "a", "-u", "$user"), parse_qstat)


def _listed(fields: Mapping[str, str]) -> Row:
    state = fields.get("state", "")
    error = "E" in state
    job_id = fields.get("JB_job_number", "")
    return Row(
        job_id,
        _name(html.unescape(fields.get("JB_name", ""))),
        state,
        phase_of(state),
        fields.get("queue_name", "").partition("@")[2],
        reason=f"qstat -j {job_id} says why" if error else "",
        hopeless=error,
        held="h" in state and not error,
        in_error=error,
    )


def phase_of(state: str) -> Phase:
    """Return the phase of a state's letters (``qw``, ``Rr``, ``dr``); an unknown state is logged once."""
    if set(state) - set(_KNOWN).union(*(letters for letters, _ in _LETTERS)):
        warn_of_unknown_state("Grid Engine", state)
    meant = (phase for letters, phase in _LETTERS if set(letters) & set(state))
    return next(meant, Phase.RUNNING)


# Codes of ``failed`` (sge_status(5)) if the job's script has not begun, or the node has lost the job.
_NODE_FAILED = frozenset({1, 3, 4, 6, 7, 8, 9, 10, 11, 18, 19, 20, 21, 26, 27, 28, 29, 31, 32, 33, 34, 35, 36, 38})
# The node could not open the job's log, or change to its work folder: nothing of the job ran.
_NO_LOG = frozenset({26, 28})
# Codes of a run that is over while the job is queued again under the same id.
_AGAIN = frozenset({24, 25})
_LIMIT = 37
# The exit status after SIGUSR2, which Grid Engine sends before it kills a job that is being deleted.
_TOLD_TO_STOP = 128 + 12
_KILLED = 128


def parse_qacct(text: str) -> list[Row]:
    """Read the answer of ``qacct -j``; only the last run of each job is returned."""
    rows = map(_ended, _runs(text))
    return list({(row.job_id, row.name): row for row in rows}.values())


def _runs(text: str) -> Iterator[dict[str, str]]:
    for block in re.split(r"^=+$", text, flags=re.MULTILINE):
        fields = {key: value.strip() for key, value in re.findall(r"^(\w+)[ \t]+(.*)$", block, re.MULTILINE)}
        if fields.get("jobnumber", "").isdigit() and "exit_status" in fields:
            yield fields


def parse_usage(text: str) -> list[Usage]:
    """Read each run in the answer of ``qacct -j``, without its peak memory: qacct has only that of address space."""
    return [_usage(fields, _ended(fields)) for fields in _runs(text)]


def _usage(fields: Mapping[str, str], row: Row) -> Usage:
    asked = dict(re.findall(r"\b(h_rt|h_vmem)=([^,\s]+)", fields.get("category", "")))
    slots = max(1, _leading(fields.get("slots", "")))
    cpu = re.match(r"\d+(\.\d+)?", fields.get("cpu", ""))
    return Usage(
        job_id=row.job_id,
        name=row.name,
        phase=row.phase,
        node=row.node,
        queued=_moment(fields.get("qsub_time", "")),
        started=_moment(fields.get("start_time", "")),
        ended=_moment(fields.get("end_time", "")),
        cpus=slots,
        memory_bytes=bytes_of(asked.get("h_vmem", "")) * slots,
        time_minutes=seconds_of(asked.get("h_rt", "")) // 60,
        cpu_seconds=float(cpu.group()) if cpu else 0.0,
    )


def _moment(text: str) -> float:
    """Return seconds since 1970 of a time in this machine's zone; 0 for text of any other form."""
    try:
        return time.mktime(time.strptime(text, "%a %b %d %H:%M:%S %Y"))
    except (ValueError, OverflowError):
        return 0.0


def _ended(fields: Mapping[str, str]) -> Row:
    failed, exit_status = _leading(fields.get("failed", "0")), _leading(fields["exit_status"])
    cause = fields.get("failed", "").partition(":")[2].strip()
    return Row(
        fields["jobnumber"],
        _name(fields.get("jobname", "")),
        f"failed {failed}" if failed else "ended",
        _phase_of_end(failed, exit_status, fields),
        fields.get("hostname", ""),
        reason=f"{cause}, exit status {exit_status}" if cause else f"exit status {exit_status}",
        no_log=failed in _NO_LOG,
    )


def _phase_of_end(failed: int, exit_status: int, fields: Mapping[str, str]) -> Phase | Cause:
    """Find how a run has ended: qacct has the same code for all limits, older versions have none."""
    if failed in _AGAIN or failed in _NODE_FAILED:
        return Phase.PENDING if failed in _AGAIN else Cause.NODE
    if failed != _LIMIT and exit_status <= _KILLED:
        return Cause.CRASHED if exit_status else Phase.COMPLETED
    asked = dict(re.findall(r"\b(h_rt|h_cpu|h_vmem)=([^,\s]+)", fields.get("category", "")))
    if 0 < seconds_of(asked.get("h_rt", "")) <= _leading(fields.get("ru_wallclock", "")):
        return Cause.TIMEOUT
    if failed != _LIMIT and exit_status == _TOLD_TO_STOP:
        return Cause.CANCELLED
    most = bytes_of(asked.get("h_vmem", "")) * max(1, _leading(fields.get("slots", "")))
    if most and bytes_of(fields.get("maxvmem", "")) >= most:
        return Cause.MEMORY
    if failed != _LIMIT:
        return Cause.CRASHED
    return Cause.TIMEOUT if 0 < seconds_of(asked.get("h_cpu", "")) <= _leading(fields.get("cpu", "")) else Cause.MEMORY


def _leading(text: str) -> int:
    found = re.match(r"\d+", text)
    return int(found.group()) if found else 0


def seconds_of(text: str) -> int:
    """Return the seconds of Grid Engine's notation, seconds or HH:MM:SS (``99:99:99`` too); 0 for any other text."""
    if not re.fullmatch(r"\d+(:\d+:\d+)?", text, re.ASCII):
        return 0
    return sum(int(part) * 60**place for place, part in enumerate(reversed(text.split(":"))))


# Patterns of qsub's stderr. The first that matches decides.
_REFUSALS: tuple[tuple[str, Refusal], ...] = (
    # Limits on the number of a user's jobs, which pass as jobs end.
    (r"only \d+ jobs are allowed", Refusal.PASSING),
    (r"did not answer in|commlib|unable to (send|contact|connect)|can't (contact|connect)", Refusal.PASSING),
    (r"(send|receive|select|read) error|Connection (refused|timed out|reset)|try again", Refusal.PASSING),
    (r"temporarily unavailable|submission of (new )?jobs is disabled", Refusal.PASSING),
    (r"no suitable queues|unknown (resource|queue)|does(n't| not) exist|not a valid|not allowed", Refusal.PERMANENT),
    (r"invalid|is not an? \w+ value|denied|rejected|no access|permission", Refusal.PERMANENT),
)

refusal = functools.partial(Refusal.of, _REFUSALS)

# The message of a process that got no more memory. ``h_vmem`` limits each process, too, so that its request is refused
# before Grid Engine sees any excess.
_OUT_OF_MEMORY = re.compile(r"^([\w.]*\.)?_?(Array)?MemoryError\b|cannot allocate memory|std::bad_alloc", re.I | re.M)
says_out_of_memory = _OUT_OF_MEMORY.search


def in_words(reason: str) -> str:
    """Return nothing: a row's reason contains the remedy."""
    return ""
