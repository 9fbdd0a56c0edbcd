"""Grid Engine: what goes to its commands and what they answer, as pure functions of text (`scheduler.Scheduler`).

The options stand in the script's ``#$`` lines (so that it can be read, and submitted by hand) and are given to qsub as
arguments too; there the lines are not read (``-C ""``), as bash of the user's may hold some. What Grid Engine's
commands answer is read in `sge_answers`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.bundles.model import BundleText, BundleValues
from espo_luigi.jobs.resources import MIB, mib, render_memory
from espo_luigi.jobs.schedulers.base import Account, Directive, Memory, Query, Row, chunked
from espo_luigi.jobs.schedulers.gridengine.parse import (  # noqa: F401  # some only as this is a `Scheduler`
    NO_JOB,
    has_ended,
    in_words,
    keeps_no_memory,
    parse_accounts,
    parse_qacct,
    parse_qstat,
    refusal,
    says_out_of_memory,
    sge_name,
    submitted_id,
)
from espo_luigi.jobs.schedulers.script import (
    PAUSES,
    PackOptions,
    ScriptValues,
    checked,
    log_stem,
    positive,
    render_script,
    safe,
)

NAME = "Grid Engine"
SUBMIT = "qsub"
# Of the variables of its jobs, JOB_ID is a name that other programs use, too.
VARIABLES = "SGE_TASK_"
USER_VARIABLES = ""
SCRATCH = "$TMP"
GPU_DIRECTIVES: frozenset[str] = frozenset()
DASK_JOB = "sge.SGEJob"
FORGETS_CANCELLED = True

# Every run of qacct reads the whole accounting file: for more jobs than this, one run asks for all of such names.
_MOST_BY_ID = 3
# The variable that tells a job its memory, of which Grid Engine says nothing, in MiB.
_MEMORY_VARIABLE = "ESPO_MEMORY_MIB"
_OPTION = re.compile(r"[a-zA-Z_]+", re.ASCII)
_RESOURCE = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# What Grid Engine or the shell sets for each job, by name or by how the name begins.
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
# What every job is given anyway.
_ALWAYS = ("cwd", "V", "j")
# Options that the engine itself sets, or with which one submission would no longer be one job that runs one command.
_RESERVED = frozenset(
    {"@", "C", "N", "S", "V", "b", "ckpt", "clear", "cwd", "e", "h", "help", "i", "j", "now", "notify", "o", "r"}
    | {"sync", "t", "tc", "terse", "verify", "wd"}
)


@dataclass(frozen=True)
class SgeOptions(PackOptions):
    """Options of Grid Engine that have a name in luigi.cfg and as parameters of a task; this is the one list of them.

    `memory_resource` is what the site calls the memory of a job (``none`` where none is to be asked for) and
    `memory_per` whether an amount is for each ``slot`` or for the ``job``. ``extra = {"l": "mem_free=4G"}`` asks for
    further resources.
    """

    queue: str | None = None
    parallel_environment: str = "threaded"
    project: str | None = None
    memory_resource: str = "h_vmem"
    memory_per: str = "slot"


OPTIONS = SgeOptions
_NAMED = {"q": "queue", "pe": "parallel_environment", "P": "project"}


def log_pattern(log_dir: str, rule: str, wildcards: Mapping[str, str], bundle: str = "", task: int = 0) -> str:
    """``{log_dir}/{rule}/{rule}-{wildcards}-$JOB_ID.out``, with what qsub or file names cannot hold replaced."""
    return f"{log_dir}/" + f"{safe(rule, 60)}/{log_stem(rule, wildcards, '+')}-$JOB_ID.out".replace(",", "+")


def log_path(pattern: str, job_id: str) -> str:
    """The log's real path, from the pattern that `log_pattern` made."""
    return pattern.replace("$JOB_ID", job_id)


def arguments(values: ScriptValues) -> tuple[str, ...]:
    """The job's options as arguments of qsub, in a fixed order. Raises SubmissionError."""
    options = SgeOptions(**vars(values.options))
    cpus = positive("cpus_per_task", values.cpus_per_task)
    mine = [
        *("-N", sge_name(values.name)),
        *("-o", _path("log path", values.log_pattern, r"\$(?!JOB_ID\.out$)|[,:]")),
        *("-j", "y", "-S", "/bin/bash", "-cwd", "-r", "y", "-notify"),
        *(("-pe", _word("parallel_environment", options.parallel_environment), str(cpus)) if cpus > 1 else ()),
        *_named("queue", "-q", options.queue),
        *_named("project", "-P", options.project),
        *("-l", ",".join(_resources(values, options, cpus))),
    ]
    _path("work folder", values.workdir, r"\$")
    # A job that nothing could ever run is refused, instead of waiting for ever; load values count as nothing.
    check = () if "w" in options.extra else ("-w", "e")
    return (*mine, *check, *(word for one in options.extra.items() for word in _extra(*one, options)))


def _path(what: str, path: str, forbidden: str) -> str:
    found = re.search(forbidden, path)
    if found:
        # qsub replaces variables in paths, takes what is before a colon for a host, and a comma for the next path.
        raise SubmissionError(
            f"{what}: {path!r} holds {found.group()!r}, which qsub reads as its own: use another folder"
        )
    return checked(what, path)


def _word(what: str, value: str) -> str:
    if value.startswith("-") or not value:
        raise SubmissionError(f"{what}: {value!r} is not a name that qsub takes")
    return checked(what, value)


def _named(what: str, flag: str, value: str | None) -> tuple[str, ...]:
    return (flag, _word(what, value)) if value else ()


def _resources(values: ScriptValues, options: SgeOptions, cpus: int) -> list[str]:
    asked = [f"h_rt={60 * positive('time_minutes', values.time_minutes)}"]
    if options.memory_resource != "none":
        if not _RESOURCE.fullmatch(options.memory_resource):
            raise SubmissionError(
                f"memory_resource: {options.memory_resource!r} is not a resource's name, such as h_vmem"
            )
        asked.append(f"{options.memory_resource}={_memory(values, options, cpus)}")
    if options.exclude:
        asked.append(f"h=!({'|'.join(map(_host, options.exclude))})")
    return asked


def _memory(values: ScriptValues, options: SgeOptions, cpus: int) -> str:
    """``64G``, or in M; Grid Engine takes no ``64GB``."""
    asked = mib(positive("memory", values.memory_bytes))
    if options.memory_per not in ("slot", "job"):
        raise SubmissionError(f"memory_per: {options.memory_per!r}; expected 'slot' or 'job'")
    if options.memory_per == "slot":
        asked = -(-asked // cpus)
    return f"{asked}M" if asked % 1024 else f"{asked // 1024}G"


def _host(name: str) -> str:
    if not _HOST.fullmatch(name):
        raise SubmissionError(f"exclude: {name!r} is not a host's name; Grid Engine knows no lists such as n[1-3]")
    return name


def _extra(name: str, value: str, options: SgeOptions) -> tuple[str, ...]:
    if not _OPTION.fullmatch(name):
        raise SubmissionError(f"extra: {name!r} is not an option of qsub without its dash, such as 'l' or 'hold_jid'")
    if name in _RESERVED:
        raise SubmissionError(f"extra: -{name} is set by the engine, or would make one submission more than one job")
    if name in _NAMED:
        raise SubmissionError(f"extra: -{name} has an option of its own: give it as {_NAMED[name]!r}")
    if name == "l":
        _refuse_own_resources(value, options)
    return (f"-{name}", checked(name, value)) if value else (f"-{name}",)


def _refuse_own_resources(value: str, options: SgeOptions) -> None:
    """Of a resource that is asked for twice the last counts: it would escape the site's limits, and never grow."""
    own = {"h_rt": "time", options.memory_resource: "memory", "h": "exclude", "hostname": "exclude"}
    for name in (part.partition("=")[0].strip() for part in value.split(",")):
        if name in own:
            raise SubmissionError(f"extra: l: {name} is asked for by `{own[name]}`: give it there")


def directive(line: str, options: Mapping[str, Any]) -> Directive:
    """What a line such as ``-pe threaded 10`` asks for."""
    flag, *rest = shlex.split(line) or [""]
    if not flag.startswith("-"):
        raise ValueError("expected -NAME")
    name, _, value = flag.lstrip("-").partition("=")
    if name == "pe" and len(rest) == 2:
        return Directive({"parallel_environment": rest[0]}, cpus=rest[1])
    if name == "l":
        return resource_spec(" ".join(rest), options)
    own = _NAMED.get(name, name)
    return Directive() if name in _ALWAYS else Directive.option(options, own, value or " ".join(rest))


def resource_spec(text: str, options: Mapping[str, Any]) -> Directive:
    """What is asked for by ``-l``: memory and time apart, so that limits hold for them."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    amounts = {name: amount for name, _, amount in (part.partition("=") for part in parts)}
    memory, seconds = amounts.get(options["memory_resource"]), amounts.get("h_rt")
    others = [part for part in parts if part.partition("=")[0] not in (options["memory_resource"], "h_rt")]
    listed = ",".join(filter(None, [options["extra"].get("l"), *others]))
    return Directive(
        {"extra": {**options["extra"], "l": listed}} if others else {},
        memory=memory if memory is None else _whole_bytes(memory),
        time=str(-(-int(seconds) // 60)) if seconds is not None and seconds.isdecimal() else seconds,
        per_slot=options["memory_per"] == "slot",
    )


def _whole_bytes(text: str) -> str:
    """An amount as Grid Engine writes it (a number is bytes; g is 10^9, G 2^30), in MiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", text)
    if found is None:
        raise ValueError(f"{text!r} is no amount of memory; expected for example 4G")
    unit = {"": 1, "k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2, "g": 1000**3, "G": 1024**3}[found[2]]
    return render_memory(int(float(found[1]) * unit))


def render(values: ScriptValues) -> str:
    """The script of one submission. Raises SubmissionError for a value that cannot be passed safely."""
    options, first = _header(values)
    return render_script(values, options, "JOB_ID", ["\n".join(first)])


def header(values: ScriptValues) -> list[str]:
    """The lines with which any script of such a job begins. Raises SubmissionError as `render` does."""
    options, first = _header(values)
    return [*options, *first]


def _header(values: ScriptValues) -> tuple[list[str], list[str]]:
    file = checked("environment file", values.environment_file)
    first = [
        *(_environment_lines(file) if file else ()),
        # Before it suspends a job, Grid Engine sends SIGUSR1 to all its processes: it would end Dask's workers.
        "trap '' USR1",
        f"export {_MEMORY_VARIABLE}={mib(positive('memory', values.memory_bytes))}",
    ]
    return [f"#$ {line}" for line in _lines(arguments(values))], first


def _environment_lines(file: str) -> list[str]:
    """The lines that read the environment; while the file system fails, the job looks again."""
    quoted = shlex.quote(file)
    return [f'for pause in {PAUSES}; do [ -r {quoted} ] && break; sleep "$pause"; done', f". {quoted} || exit 1"]


def bundled(bundle: BundleValues) -> BundleText:
    """Nothing: several tasks as one submission are for Slurm only."""
    raise SubmissionError(
        f"pack = {bundle.bundling.most}: on {NAME} each task is a job of its own; remove `pack`, or set it to 1"
    )


def _lines(words: Sequence[str]) -> list[str]:
    """Options with their values, one a line, quoted as qsub reads its ``#$`` lines."""
    lines: list[str] = []
    for word in words:
        if re.fullmatch(r"-[a-zA-Z_]+", word):
            lines.append(word)
        else:
            # qsub takes double quotes as they are, but not the several kinds in a row that bash would need.
            lines[-1] += f' "{word}"' if "'" in word and '"' not in word else f" {shlex.quote(word)}"
    return lines


def submission(values: ScriptValues, script: Path) -> tuple[str, ...]:
    """The command that submits the script."""
    return ("qsub", "-terse", "-C", "", "-b", "n", "-sync", "n", *arguments(values), str(script))


def listing(user: str) -> Query[Row]:
    """All jobs of this user that wait or run; those that have ended are in no list for long."""
    # qstat takes no number for a user: by this word, it finds out itself who asks. A user's defaults may hide states.
    return Query(("qstat", "-xml", "-s", "a", "-u", "$user"), parse_qstat)


def drained_nodes() -> None:
    """Nothing: Grid Engine takes a queue, not a host, out of use, and says so of the job."""


def one_job(user: str, job_id: str) -> Query[Row]:
    """All jobs of this user, one of which it is; nothing is said of when it may start."""
    return listing(user)


def memories(
    user: str, job_ids: Sequence[str], names: Sequence[str], known_names: Sequence[str] = ()
) -> tuple[Memory, ...]:
    """What the accounting file says of jobs that have ended; it may be written late."""
    asked = _asked(job_ids, names, known_names)
    return (
        Memory(
            "qacct",
            tuple(Query(("qacct", "-j", one), parse_qacct, NO_JOB) for one in asked),
            without="no accounting (%s): how a job has ended that left no result is not known",
        ),
    )


def accounts(user: str, job_ids: Sequence[str], names: Sequence[str]) -> list[Query[Account]]:
    """What qacct says that jobs were given and took."""
    return [Query(("qacct", "-j", one), parse_accounts, NO_JOB) for one in _asked(job_ids, (), names)]


def _asked(job_ids: Sequence[str], names: Sequence[str], known_names: Sequence[str]) -> list[str]:
    """What to ask qacct for, a command each: jobs by id and by name, or all whose names begin as these do."""
    asked = [*job_ids, *map(sge_name, names)]
    # The file may hold a year's runs, too many to be read in each cycle.
    return asked if len(asked) <= _MOST_BY_ID else [sge_name(_beginning([*names, *known_names])) + "*"]


def _beginning(names: Sequence[str]) -> str:
    """What all of the names begin with."""
    first, last = min(names, default=""), max(names, default="")
    differ = (place for place, (one, other) in enumerate(zip(first, last, strict=False)) if one != other)
    return first[: next(differ, len(first))]


def cancellations(user: str, job_ids: Iterable[str]) -> list[tuple[str, ...]]:
    """The commands that cancel jobs by id, as few as the length of a command line allows; they end only one's own."""
    return [("qdel", *group) for group in chunked(job_ids)]


def stack_dumps(job_ids: Iterable[str]) -> list[tuple[str, ...]]:
    """Nothing: only before it ends a job does Grid Engine send a signal, at which the job writes its stack."""
    return []


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of Grid Engine's commands, which a submission hands on to the job."""
    # A driver that is itself a job's has these of a parallel environment; its jobs may be in none.
    kept = {key: value for key, value in environ.items() if key not in ("PE", "PE_HOSTFILE")}
    return {**kept, "LC_ALL": "C.UTF-8"}


def handed_on(environ: Mapping[str, str]) -> str:
    """The lines of bash that give a job this environment: with ``-V``, qstat would show it to every account."""
    names = sorted(name for name in environ if _VARIABLE.fullmatch(name) and name not in _OF_EACH_JOB)
    return "".join(f"export {name}={_quoted(environ[name])}\n" for name in names if not name.startswith(_PREFIXES))


def _quoted(value: str) -> str:
    with contextlib.suppress(UnicodeEncodeError):
        value.encode()
        return shlex.quote(value)
    return "$'" + "".join(f"\\x{byte:02x}" for byte in os.fsencode(value)) + "'"


def job_id(environ: Mapping[str, str]) -> str | None:
    """The id of the job in which this process runs."""
    return environ.get("JOB_ID") if "SGE_TASK_ID" in environ else None


def given(environ: Mapping[str, str]) -> dict[str, int]:
    """The CPUs and the bytes of memory that the job was given."""
    names = {"cpus_per_task": ("NSLOTS", 1), "memory_bytes": (_MEMORY_VARIABLE, MIB)}
    return {what: int(environ[name]) * unit for what, (name, unit) in names.items() if name in environ}


def node_folder(environ: Mapping[str, str]) -> str | None:
    """The folder on the node that Grid Engine makes for the job, and removes after it."""
    return environ.get(SCRATCH.removeprefix("$")) if job_id(environ) else None
