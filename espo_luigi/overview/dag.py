"""A plan's graph as text for Mermaid and Graphviz: by rule, or by task for few tasks; coloured by state."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from espo_luigi.overview.plan import Plan
from espo_luigi.overview.states import BLOCKED, DONE, RUN
from espo_luigi.tasks.partition import simulations_of

# With more tasks than these, a node is a rule, unless a node for each task is asked for.
MOST_NODES = 120
STALE = "stale"
# They differ in lightness, too, for people who do not see colours; the nodes of rules have words.
COLOURS = {DONE: "#cfe8d5", RUN: "#ffffff", STALE: "#fde9a9", BLOCKED: "#d98880"}


@dataclass
class Node:
    """A rule or a task: its text, its state, and the nodes that it needs."""

    label: str
    state: str
    needs: set[str] = field(default_factory=set)


def nodes_of(plan: Plan, *, by_task: bool = False) -> dict[str, Node]:
    """Return a node for each task where there are few (or `by_task`), or else for each rule."""
    by_rule = len(plan.tasks) > MOST_NODES and not by_task
    names = {task_id: one.rule if by_rule else task_id for task_id, one in plan.tasks.items()}
    states: dict[str, Counter[str]] = defaultdict(Counter)
    nodes: dict[str, Node] = {}
    of_one = len(set().union(*(simulations_of(one.task) for one in plan.tasks.values()))) == 1
    for task_id, one in plan.tasks.items():
        name = names[task_id]
        action = one.status.in_plan
        is_stale = action == DONE and (task_id in plan.again or bool(one.status.changed))
        states[name][STALE if is_stale else action] += 1
        same = ("sim_id", "pool") if of_one else ()
        told = [_short(value) for key, value in one.task.wildcards.items() if key not in same]
        label = one.rule if by_rule else "\n".join([one.rule, *told])
        node = nodes.setdefault(name, Node(label, DONE))
        node.needs |= {names[needed] for needed in plan.graph.needs[task_id] if needed in names} - {name}
    for name, counts in states.items():
        nodes[name].state = next(state for state in (BLOCKED, RUN, STALE, DONE) if counts[state])
        if by_rule:
            counted = (f"{counts[state]} {state}" for state in (DONE, STALE, RUN, BLOCKED) if counts[state])
            nodes[name].label += "\n" + ", ".join(counted)
    return nodes


def as_mermaid(nodes: Mapping[str, Node]) -> str:
    """Return a flow chart in Mermaid's notation."""
    ids = {name: f"n{number}" for number, name in enumerate(nodes)}
    lines = ["flowchart LR"]
    for name, node in nodes.items():
        # In entities, but for what names hold: Mermaid takes text for HTML, Markdown and notation.
        escaped = (one if one.isalnum() or one in " _-.,…=\n" else f"#{ord(one)};" for one in node.label)
        text = "".join(escaped).replace("\n", "<br>")
        lines.append(f'  {ids[name]}["{text}"]:::{node.state.replace(" ", "_")}')
    lines += [f"  {ids[needed]} --> {ids[name]}" for needed, name in _arrows(nodes)]
    used = {node.state for node in nodes.values()}
    lines += [
        f"  classDef {state.replace(' ', '_')} fill:{COLOURS[state]},stroke:#333" for state in COLOURS if state in used
    ]
    return "\n".join(lines)


def as_dot(nodes: Mapping[str, Node]) -> str:
    """Return a graph in Graphviz's language."""
    ids = {name: f"n{number}" for number, name in enumerate(nodes)}
    lines = ["digraph {", "  rankdir=LR", "  node [shape=box, style=filled]"]
    for name, node in nodes.items():
        text = node.label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines.append(f'  {ids[name]} [label="{text}", fillcolor="{COLOURS[node.state]}"]')
    lines += [f"  {ids[needed]} -> {ids[name]}" for needed, name in _arrows(nodes)]
    return "\n".join([*lines, "}"])


NOTATIONS: Mapping[str, Callable[[Mapping[str, Node]], str]] = {"mermaid": as_mermaid, "dot": as_dot}


def _short(value: str) -> str:
    """Shorten a name for a box: simulations differ at the beginning and at the end."""
    return value if len(value) <= 24 else f"{value[:10]}…{value[-13:]}"


def _arrows(nodes: Mapping[str, Node]) -> list[tuple[str, str]]:
    """Return each node's direct needs, with the node: those that no other need already needs."""
    arrows = []
    for name, node in nodes.items():
        below = set().union(*(_below(nodes, needed) for needed in node.needs))
        arrows += [(needed, name) for needed in nodes if needed in node.needs - below]
    return arrows


def _below(nodes: Mapping[str, Node], name: str) -> set[str]:
    found: set[str] = set()
    stack = [name]
    while stack:
        for needed in nodes[stack.pop()].needs - found:
            found.add(needed)
            stack.append(needed)
    return found
