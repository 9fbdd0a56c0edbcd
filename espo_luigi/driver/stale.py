"""The stale tasks of a run: which they are, and the lines about them at its end, with the command that remakes them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from luigi.task import Task

from espo_luigi.driver.graph import Graph
from espo_luigi.driver.task import SlurmTask

# Has a run make stale outputs again.
_OPTION = ("--espo-rerun", "stale")
# The number of keys in a line.
_SHOWN = 5


def stale_in(
    graph: Graph, pending: set[str], seen: set[str], ends: Iterable[Task] | None = None
) -> tuple[dict[str, list[str]], set[str]]:
    """Return the keys that have changed since each stale task was complete, and all tasks that a run makes for them.

    These are the stale tasks, and the tasks that they need. `pending` and `seen` come from `Graph.pending` of `ends`.
    """
    known: dict[str, list[str]] = {}

    def keys_of(task_id: str) -> list[str]:
        if task_id not in known:
            task = graph.tasks[task_id]
            known[task_id] = task.stale() if isinstance(task, SlurmTask) and task_id not in pending else []
        return known[task_id]

    for task_id in seen:
        keys_of(task_id)
    if not any(known.values()):
        return {}, set()
    remade, _ = graph.pending(lambda task: not task.complete() or bool(keys_of(task.task_id)), ends)
    again = {task_id for task_id in remade - pending if isinstance(graph.tasks[task_id], SlurmTask)}
    # `remade` has also looked below the stale tasks, at products that a run without changes does not look at.
    return {task_id: known[task_id] for task_id in graph.tasks if known.get(task_id)}, again


def told_of(graph: Graph, words: Sequence[str] | None) -> dict[str, Any]:
    """Return an account of the stale tasks of a run of a graph's roots, for its end; empty if no task is stale.

    By rule, it has the number of stale tasks and the keys. `words` are the arguments of the given command; None if a
    program runs the tasks.
    """
    # A wrapper without outputs is complete as soon as its requirements are.
    roots = graph.roots.values()
    ends = [task for root in roots for task in ([root] if isinstance(root, SlurmTask) else graph.needs_of(root))]
    stale, again = stale_in(graph, *graph.pending(ends=ends), ends)
    rules: dict[str, dict[str, Any]] = {}
    for task_id, keys in stale.items():
        of_rule = rules.setdefault(graph.tasks[task_id].task_family, {"tasks": 0, "keys": []})
        of_rule["tasks"] += 1
        of_rule["keys"] += [key for key in keys if key not in of_rule["keys"]]
    if not rules:
        return {}
    command = "the same program, with `rerun = stale` below [espo] in luigi.cfg"
    if words is not None:
        made = {graph.tasks[task_id].task_family for task_id in again}
        # Without options that would exclude the tasks that are made again.
        for widen in filter(None, (getattr(root, "words_to_run", None) for root in roots)):
            words = widen(words, made)
        command = shlex.join([*program_words(), *words, *_OPTION])
    return {"rules": rules, "made_again": len(again), "command": command}


def stale_lines(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of an account; no line for an empty account."""
    if not told:
        return
    count = sum(rule["tasks"] for rule in told["rules"].values())
    yield f"STALE: {count} task(s) are complete and used as they are, but what they were made of has changed since:"
    of_keys: dict[tuple[str, ...], list[str]] = {}
    for name, rule in told["rules"].items():
        of_keys.setdefault(tuple(rule["keys"]), []).append(f"{rule['tasks']} {name}")
    for keys, tasks in of_keys.items():
        more = f", and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
        yield f"  {', '.join(tasks)}: because of {', '.join(keys[:_SHOWN])}{more}"
    yield f"This makes them again, {told['made_again']} task(s) with those that they need:"
    yield f"  {told['command']}"


def program_words() -> list[str]:
    """Return the words of this process's command before its arguments: of a script on PATH, its name."""
    script, started = sys.argv[0], sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    if started[1:] != [script]:  # python -m luigi
        return started
    found = shutil.which(Path(script).name)
    if found and os.path.samefile(found, script):
        return [Path(script).name]
    return [script] if os.sep in script and os.access(script, os.X_OK) else started
