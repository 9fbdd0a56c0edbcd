"""The bash of a bundle's job on Slurm, below its directives: steps beside each other, an array's element, a pilot.

The script of each member is that of a job of its own, but for what runs its command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.bundles.model import ARRAY, PILOT, STEPS, BundleValues
from espo_luigi.jobs.resources import MIB, mib
from espo_luigi.jobs.schedulers.script import (
    ScriptValues,
    checked,
    render_cd,
    render_command,
    render_script,
    rendered_environment,
    rendered_setup,
)
from espo_luigi.jobs.schedulers.slurm.steps import DIRECTIVE, sizes

# Seconds between a member's looks whether its work is still its own; a closed claim is how the driver stops it.
_LOOK_SECONDS = 10
_TASK_LOG = "0.out"
_CONF = "{}.conf"
# Options of a step that the engine itself sets.
_RESERVED = frozenset(
    {"cpus-per-task", "exclusive", "gres", "job-name", "kill-on-bad-exit", "mem", "multi-prog", "nodes", "ntasks"}
    | {"open-mode", "output", "wait"}
)

# Beside its claim, the end of a member that others outlive. Not where all of them are being stopped: the scheduler
# says why.
_NOTE_END = """\
stopping=
note_end() {
    [ "$2" -gt 128 ] && sleep 2
    # Its success is known, and its files are gone.
    [ "$2" -eq 0 ] && [ ! -e "$1" ] && return
    [ -z "$stopping" ] || return
    for pause in 1 2 4 8 15 30 60 0; do
        aside="$1.end.$HOSTNAME.$$.$RANDOM$RANDOM"
        ( set -C; printf '%s\\n' "$SLURM_JOB_ID $2" > "$aside" ) && mv -fT -- "$aside" "$1.end" && break
        rm -f -- "$aside"
        sleep "$pause"
    done
}"""

# Slurm's signals reach the command by themselves, as they go to all processes of a step.
_RUN = """\
trap 'stopping=yes' TERM
trap : USR1 USR2
COMMAND &
child=$!
(
    trap '' USR1 USR2
    closed=0
    while sleep SECONDS; do
        now=$(cat -- "$claim" 2>/dev/null)
        [ -n "$now" ] && [ "$now" != "$owner" ] && closed=$((closed + 1))
        case $closed in
            0 | 1) ;;
            2) kill -USR1 "$child" ;;
            3) kill -TERM "$child" ;;
            *) kill -KILL "$child" ;;
        esac
    done
) > /dev/null 2>&1 &
watch=$!
wait "$child"
code=$?
while kill -0 "$child" 2>/dev/null; do
    wait "$child"
    code=$?
done
kill "$watch" 2>/dev/null
note_end "$claim" "$code"
exit "$code\""""

_STEPS = """\
trap '' USR1 USR2
trap 'stopping=yes; kill -TERM $(jobs -rp) 2>/dev/null' TERM

# The claims of a step's members, --, and the options of its srun.
step() {
    local claims=() code srun
    while [ "$1" != -- ]; do
        claims+=("$1")
        shift
    done
    rm -f -- "${claims[@]/%/.end}"
    srun "${@:2}" < /dev/null &
    srun=$!
    # At SIGTERM, srun kills what it runs; this signal it hands on, and jobs take it as they do SIGTERM.
    trap 'stopping=yes; kill -USR2 "$srun" 2>/dev/null' TERM
    wait "$srun"
    code=$?
    while kill -0 "$srun" 2>/dev/null; do
        wait "$srun"
        code=$?
    done
    for claim in "${claims[@]}"; do
        [ -e "$claim.end" ] || note_end "$claim" "$code"
    done
}

start() {
    while [ "$(jobs -rp | wc -l)" -ge AT_ONCE ]; do
        wait -n
    done
    [ -n "$stopping" ] || step "$@" &
}"""

_WAIT = """\
while [ -n "$(jobs -rp)" ]; do
    wait
done"""


def sized(bundle: BundleValues) -> ScriptValues:
    """What the job that carries the members asks for: what runs at once."""
    one, width, kind = bundle.members[0], bundle.width, bundle.bundling.kind
    options: Any = one.options
    gres = _gres(one)
    whole = replace(one, name=bundle.name, log_pattern=bundle.log_pattern, time_minutes=bundle.time_minutes)
    if kind == STEPS and gres and "overlap" not in bundle.bundling.step_options:
        at_once = -(-width // bundle.bundling.per_step)
        many = ",".join(_times(part, at_once) for part in gres.split(","))
        whole = replace(whole, options=replace(options, gres=many))
    cpus = one.cpus_per_task * (width if kind == PILOT else 1)
    return replace(whole, cpus_per_task=cpus, memory_bytes=_memory_bytes(one) * width)


def _memory_bytes(values: ScriptValues) -> int:
    """What a member is given: the job has room for that of all."""
    return mib(values.memory_bytes) * MIB


def _gres(values: ScriptValues) -> str | None:
    return getattr(values.options, "gres", None)


def _times(gres: str, n: int) -> str:
    name, _, count = gres.rpartition(":")
    if name and count.isdigit():
        return f"{name}:{n * int(count)}"
    if name and re.fullmatch(r"\d+[KMGTP]?", count):
        raise SubmissionError(f"gres: {gres!r}: give the number of it that a step needs in full, such as gpu:1")
    return f"{gres}:{n}"


def render_member(values: ScriptValues, kind: str) -> str:
    """The script of one member, which claims its work by itself."""
    if kind == ARRAY:
        return render_script(values, (), "job_id", ['job_id="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"'])
    # What Slurm says here of the whole job.
    sizes = f"export SLURM_CPUS_PER_TASK={values.cpus_per_task} SLURM_MEM_PER_NODE={mib(values.memory_bytes)}"
    if kind == STEPS:
        return render_script(values, (), "SLURM_JOB_ID", [sizes, _NOTE_END], _rendered_run)
    # The process that forks for it takes the environment that it would have had.
    bare = replace(values, options=replace(values.options, setup=""))
    return render_script(bare, (), "SLURM_JOB_ID", [sizes], lambda _: "exec env -0")


def _rendered_run(command: str) -> str:
    return _RUN.replace("SECONDS", str(_LOOK_SECONDS)).replace("COMMAND", command)


def render_job(bundle: BundleValues) -> tuple[str, Mapping[str, str]]:
    """The bash of the job that carries the members, and what else it reads: text by the ending of the file's name."""
    if bundle.bundling.kind == STEPS:
        return _render_steps(bundle)
    return (_render_array if bundle.bundling.kind == ARRAY else _render_pilot)(bundle), {}


def _render_pilot(bundle: BundleValues) -> str:
    # What starts the process that forks a child for each member.
    one = bundle.members[0]
    parts = [
        *("\n".join(lines) for lines in [rendered_environment(one.options)] if lines),
        *rendered_setup(one.options),
        f"{render_cd(one.workdir)}\nexec {render_command(bundle.pilot)}",
    ]
    return "\n\n".join(parts) + "\n"


def _render_array(bundle: BundleValues) -> str:
    scripts = "\n".join(f"    {shlex.quote(checked('script', path))}" for path in bundle.scripts)
    return f'members=(\n{scripts}\n)\nexec bash -- "${{members[SLURM_ARRAY_TASK_ID]}}"\n'


def _render_steps(bundle: BundleValues) -> tuple[str, Mapping[str, str]]:
    at_once = -(-bundle.width // bundle.bundling.per_step)
    starts, files = [], {}
    for place, members in enumerate(bundle.steps):
        claims = [shlex.quote(checked("claim file", bundle.members[one].claim_file)) for one in members]
        starts.append(" ".join(["start", *claims, "--", *_srun(bundle, place, members)]))
        if bundle.bundling.per_step > 1:
            files[_CONF.format(place)] = _conf([bundle.scripts[one] for one in members])
    parts = [_NOTE_END, _STEPS.replace("AT_ONCE", str(at_once)), "\n".join(starts), _WAIT]
    return "\n\n".join(parts) + "\n", files


def _srun(bundle: BundleValues, place: int, members: range) -> list[str]:
    """The options of a step, and what it runs."""
    first, packing = bundle.members[members[0]], bundle.bundling
    memory, gres = _memory_bytes(first) * len(members), _gres(first)
    said = [
        "--overlap" if "overlap" in packing.step_options else "--exclusive",
        *sizes(nodes=1, ntasks=len(members), cpus_per_task=first.cpus_per_task, memory=memory),
        *([f"--gres={checked('gres', gres)}"] if gres else []),
        f"--job-name={first.name}",
        f"--output={first.log_pattern.removesuffix(_TASK_LOG)}%t.out",
        "--open-mode=append",
        "--kill-on-bad-exit=0",
        "--wait=0",
        *(_step_option(name, value) for name, value in packing.step_options.items() if name != "overlap"),
    ]
    runs = (
        ["--multi-prog", f"{bundle.plan}.{_CONF.format(place)}"]
        if packing.per_step > 1
        else ["bash", "--", bundle.scripts[members[0]]]
    )
    return [shlex.quote(word) for word in (*said, *runs)]


def _step_option(name: str, value: str) -> str:
    if not DIRECTIVE.fullmatch(name) or name in _RESERVED:
        raise SubmissionError(
            f"step_options: {name!r}: expected the long name, without dashes, of an option of srun that the engine "
            "does not set itself, such as 'gpu-bind'"
        )
    return f"--{name}={checked(f'step_options: {name}', value)}" if value else f"--{name}"


def _conf(scripts: list[str]) -> str:
    """Which task runs which script; Slurm reads backslashes there, and no quotes."""
    return "".join(f"{task} bash {_protected(path)}\n" for task, path in enumerate(scripts))


def _protected(path: str) -> str:
    if "%" in path:
        raise SubmissionError(
            f"pack_per_step: the path {path!r} holds %, which srun reads as its own: use another folder"
        )
    return re.sub(r"([^\w./+,=@-])", r"\\\1", checked("script", path), flags=re.ASCII)
