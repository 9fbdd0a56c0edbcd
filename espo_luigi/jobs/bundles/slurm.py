"""Renders a bundle on Slurm: its submission, the script of the job, and that of each member.

A member's script is that of a single job, except for the lines that run its command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.bundles import BundleText, BundleValues
from espo_luigi.jobs.resources import ARRAY, MIB, PILOT, STEPS, mib
from espo_luigi.jobs.schedulers.script import (
    ScriptValues,
    checked,
    render_script,
    shell_text,
)
from espo_luigi.jobs.schedulers.slurm import DIRECTIVE, directives, header_lines, memory_asked, sizes

_TASK_LOG = "0.out"
_CONF = "{}.conf"
# Options of a step that the engine itself sets.
_RESERVED = frozenset(
    {"cpus-per-task", "exclusive", "gres", "job-name", "kill-on-bad-exit", "mem", "multi-prog", "nodes", "ntasks"}
    | {"open-mode", "output", "wait"}
)

_NOTE_END, _STOP_IF_CLOSED, _STEP_MEMBER, _PILOT_MEMBER, _STEPS = (
    Path(__file__).with_name(f"{name}.sh")
    for name in ("note_end", "stop_if_closed", "step_member", "pilot_member", "steps")
)


def bundled(bundle: BundleValues) -> BundleText:
    """Return the scripts and the submission of a bundle. Raises SubmissionError for a value that cannot be passed."""
    kind = bundle.bundling.kind
    arguments = directives(_sized(bundle), bundle.width if kind == STEPS else 1)
    if kind == ARRAY:
        most = f"%{bundle.bundling.at_once}" if bundle.bundling.at_once else ""
        arguments = (*arguments, f"--array=0-{len(bundle.members) - 1}{most}")
    header = header_lines(arguments)
    files: Mapping[str, str] = {}
    if kind == PILOT:
        script = render_script(replace(bundle.members[0], argv=bundle.pilot), header)
    else:
        if kind == STEPS:
            body, files = _render_steps(bundle)
        else:
            scripts = "\n".join(f"    {shlex.quote(checked('script', path))}" for path in bundle.scripts)
            body = f'members=(\n{scripts}\n)\nexec bash -- "${{members[SLURM_ARRAY_TASK_ID]}}"\n'
        script = "\n".join(["#!/bin/bash", *header, "", body])
    members = tuple(_render_member(values, kind) for values in bundle.members)
    return BundleText(script, members, ("sbatch", "--parsable", *arguments), files)


def _sized(bundle: BundleValues) -> ScriptValues:
    """Return the values of the job that carries the members, with room for those that run at once."""
    member, width, kind = bundle.members[0], bundle.width, bundle.bundling.kind
    options: Any = member.options
    gres = getattr(options, "gres", None)
    whole = replace(member, name=bundle.name, log_pattern=bundle.log_pattern, time_minutes=bundle.time_minutes)
    if kind == STEPS and gres and "overlap" not in bundle.bundling.step_options:
        at_once = -(-width // bundle.bundling.per_step)
        many = ",".join(_times(part, at_once) for part in gres.split(","))
        whole = replace(whole, options=replace(options, gres=many))
    cpus = member.cpus_per_task * (width if kind == PILOT else 1)
    return replace(whole, cpus_per_task=cpus, memory_bytes=_memory_bytes(member) * width)


def _memory_bytes(values: ScriptValues) -> int:
    """Return a member's memory in whole MiB, so that the job has room for all members."""
    return mib(values.memory_bytes) * MIB


def _times(gres: str, n: int) -> str:
    name, _, count = gres.rpartition(":")
    if name and count.isdigit():
        return f"{name}:{n * int(count)}"
    if name and re.fullmatch(r"\d+[KMGTP]?", count):
        raise SubmissionError(f"gres: {gres!r}: give the number of it that a step needs in full, such as gpu:1")
    return f"{gres}:{n}"


def _render_member(values: ScriptValues, kind: str) -> str:
    """Return the script of a member, which claims its work by itself."""
    if kind == ARRAY:
        return render_script(values, (), '"${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"')
    # Slurm's own variables are about the whole job.
    sizes = f"export SLURM_CPUS_PER_TASK={values.cpus_per_task} SLURM_MEM_PER_NODE={mib(values.memory_bytes)}"
    stop = shell_text(_STOP_IF_CLOSED)
    if kind == STEPS:
        first = [sizes, shell_text(_NOTE_END), stop]
        return render_script(
            values, (), "$SLURM_JOB_ID", first, lambda command: f"set -- {command}\n{shell_text(_STEP_MEMBER)}"
        )
    # The pilot has run the setup, and takes the member's environment from the script's output.
    bare = replace(values, options=replace(values.options, setup=""))
    return render_script(bare, (), "$SLURM_JOB_ID", [sizes, stop], lambda _: shell_text(_PILOT_MEMBER))


def _render_steps(bundle: BundleValues) -> tuple[str, Mapping[str, str]]:
    size, n = bundle.bundling.per_step, len(bundle.members)
    at_once = -(-bundle.width // size)
    starts, files = [], {}
    for place, first in enumerate(range(0, n, size)):
        members = range(first, min(first + size, n))
        claims = [shlex.quote(checked("claim file", bundle.members[member].claim_file)) for member in members]
        starts.append(" ".join(["start", *claims, "--", *_srun(bundle, place, members)]))
        if size > 1:
            scripts = [checked("script", bundle.scripts[member]) for member in members]
            if bad := next((path for path in scripts if "%" in path), None):
                raise SubmissionError(
                    f"pack_per_step: the path {bad!r} holds %, which srun reads as its own: use another folder"
                )
            # In srun's table of tasks, Slurm reads backslashes but no quotes.
            paths = [re.sub(r"([^\w./+,=@-])", r"\\\1", path, flags=re.ASCII) for path in scripts]
            files[_CONF.format(place)] = "".join(f"{task} bash {path}\n" for task, path in enumerate(paths))
    parts = [shell_text(_NOTE_END), f"at_once={at_once}\n{shell_text(_STEPS)}", "\n".join(starts), "finish"]
    return "\n\n".join(parts) + "\n", files


def _srun(bundle: BundleValues, place: int, members: range) -> list[str]:
    """Return the options of a step's srun, and the command of the step."""
    first, packing = bundle.members[members[0]], bundle.bundling
    gres, n = getattr(first.options, "gres", None), len(members)
    memory = memory_asked(first.options, _memory_bytes(first) * n, first.cpus_per_task * n)
    options = [
        "--overlap" if "overlap" in packing.step_options else "--exclusive",
        *sizes(nodes=1, ntasks=n, cpus_per_task=first.cpus_per_task, **memory),
        *([f"--gres={checked('gres', gres)}"] if gres else []),
        f"--job-name={first.name}",
        f"--output={first.log_pattern.removesuffix(_TASK_LOG)}%t.out",
        "--open-mode=append",
        "--kill-on-bad-exit=0",
        "--wait=0",
    ]
    for name, value in packing.step_options.items():
        if name == "overlap":
            continue
        if not DIRECTIVE.fullmatch(name) or name in _RESERVED:
            raise SubmissionError(
                f"step_options: {name!r}: expected the long name, without dashes, of an option of srun that the engine "
                "does not set itself, such as 'gpu-bind'"
            )
        options.append(f"--{name}={checked(f'step_options: {name}', value)}" if value else f"--{name}")
    table = ["--multi-prog", f"{bundle.listing}.{_CONF.format(place)}"]
    command = table if packing.per_step > 1 else ["bash", "--", bundle.scripts[members[0]]]
    return [shlex.quote(word) for word in (*options, *command)]
