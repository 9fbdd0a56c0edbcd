"""A picture of a plan: by rule, or by task for few; coloured by state. Text (Mermaid), or SVG and PNG by matplotlib."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from espo_luigi.errors import ParameterError
from espo_luigi.overview.plan import Plan
from espo_luigi.overview.standing import BLOCKED, DONE, RUN
from espo_luigi.replacing import write_ours
from espo_luigi.report.drawings import PICTURE_MARK, PICTURE_OF_OURS, picture
from espo_luigi.tasks.partition import simulations_of

# With more tasks than these, a node is a rule, unless a node for each task is asked for.
MOST_NODES = 120
STALE = "stale"
# They differ in lightness, too, for people who do not see colours; the legend has words.
COLOURS = {DONE: "#cfe8d5", RUN: "#ffffff", STALE: "#fde9a9", BLOCKED: "#d98880"}
_ARROW = {"arrowstyle": "-|>", "color": "#777777", "lw": 0.8, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 7}
_KINDS = (".svg", ".png", ".mmd")


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
        action = one.state.in_plan
        is_stale = action == DONE and (task_id in plan.again or bool(one.state.changed))
        states[name][STALE if is_stale else action] += 1
        same = ("sim_id", "pool") if of_one else ()
        told = [_short(value) for key, value in one.task.wildcards.items() if key not in same]
        label = one.rule if by_rule else "\n".join([one.rule, *told])
        node = nodes.setdefault(name, Node(label, DONE))
        node.needs |= {names[needed] for needed in one.needs if needed in names} - {name}
    for name, counts in states.items():
        nodes[name].state = next(state for state in (BLOCKED, RUN, STALE, DONE) if counts[state])
        if by_rule:
            counted = (f"{counts[state]} {state}" for state in (DONE, STALE, RUN, BLOCKED) if counts[state])
            nodes[name].label += "\n" + ", ".join(counted)
    return nodes


def draw(plan: Plan, out: Path, *, by_task: bool = False) -> None:
    """Write the picture, of the kind of the file's suffix.

    Raises
    ------
    ParameterError
        If the suffix is unknown.
    """
    if out.suffix not in _KINDS:
        raise ParameterError(f"--dag {out}: expected a name that ends in one of {', '.join(_KINDS)}")
    nodes = nodes_of(plan, by_task=by_task)
    if out.suffix == ".mmd":
        write_ours(out, f"%% {PICTURE_MARK}\n{as_mermaid(nodes)}", PICTURE_OF_OURS)
    else:
        _draw(nodes, out)


def as_mermaid(nodes: Mapping[str, Node]) -> str:
    """Return a flow chart in Mermaid's notation."""
    ids = {name: f"n{number}" for number, name in enumerate(nodes)}
    lines = ["flowchart LR"]
    for name, node in nodes.items():
        text = "<br>".join(_escaped(line) for line in node.label.split("\n"))
        lines.append(f'  {ids[name]}["{text}"]:::{node.state.replace(" ", "_")}')
    for name in nodes:
        lines += [f"  {ids[needed]} --> {ids[name]}" for needed in sorted(_direct(nodes, name), key=list(nodes).index)]
    used = {node.state for node in nodes.values()}
    lines += [
        f"  classDef {state.replace(' ', '_')} fill:{COLOURS[state]},stroke:#333" for state in COLOURS if state in used
    ]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """A label's text in Mermaid's entities, but for what names hold: it takes text for HTML, Markdown and notation."""
    return "".join(one if one.isalnum() or one in " _-.,…=" else f"#{ord(one)};" for one in text)


def _short(value: str) -> str:
    """Shorten a name for a box: simulations differ at the beginning and at the end."""
    return value if len(value) <= 24 else f"{value[:10]}…{value[-13:]}"


def _direct(nodes: Mapping[str, Node], name: str) -> set[str]:
    """Return a node's direct needs: those that no other need already needs."""
    needs = nodes[name].needs
    return {needed for needed in needs if not any(needed in _below(nodes, other) for other in needs - {needed})}


def _below(nodes: Mapping[str, Node], name: str) -> set[str]:
    found: set[str] = set()
    stack = [name]
    while stack:
        for needed in nodes[stack.pop()].needs - found:
            found.add(needed)
            stack.append(needed)
    return found


def places(nodes: Mapping[str, Node]) -> dict[str, tuple[float, float]]:
    """Return the nodes' places: a column behind all their needs, and a row as near to these as possible."""
    column: dict[str, int] = {}
    for name in nodes:
        _column(nodes, name, column)
    rows: dict[str, float] = {}
    for at in range(max(column.values(), default=0) + 1):
        here = [name for name in nodes if column[name] == at]
        wanted = {name: _mean([rows[needed] for needed in nodes[name].needs if needed in rows]) for name in here}
        for place, name in enumerate(sorted(here, key=lambda name: wanted[name])):
            rows[name] = place - (len(here) - 1) / 2
    return {name: (float(column[name]), rows[name]) for name in nodes}


def _column(nodes: Mapping[str, Node], name: str, found: dict[str, int]) -> int:
    if name not in found:
        found[name] = 1 + max((_column(nodes, needed, found) for needed in nodes[name].needs), default=-1)
    return found[name]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _draw(nodes: Mapping[str, Node], out: Path) -> None:
    from matplotlib.figure import Figure

    at = places(nodes)
    columns = 1 + max(x for x, _ in at.values())
    rows = max(Counter(x for x, _ in at.values()).values())
    figure = Figure(figsize=(1.75 * columns + 0.4, 0.7 * rows + 0.9), layout="constrained")
    axes = figure.subplots()
    axes.set_axis_off()
    axes.set_xlim(-0.55, columns - 0.45)
    axes.set_ylim(rows / 2 + 0.3, -rows / 2 - 0.3)
    texts = {}
    for name, node in nodes.items():
        box = {"boxstyle": "round,pad=0.35", "facecolor": COLOURS[node.state], "edgecolor": "#333333"}
        texts[name] = axes.text(*at[name], node.label, ha="center", va="center", fontsize=6.5, bbox=box, zorder=2)
    used = [state for state in COLOURS if any(node.state == state for node in nodes.values())]
    for state in used:
        axes.scatter([], [], s=60, marker="s", facecolor=COLOURS[state], edgecolor="#333333", label=state)
    figure.legend(loc="outside lower center", ncols=len(used), frameon=False, fontsize=7)
    figure.draw_without_rendering()  # from now on, the boxes have their sizes
    edges = {name: _left_and_right(text, axes) for name, text in texts.items()}
    for name in nodes:
        for needed in _direct(nodes, name):
            start, end = (edges[needed][1], at[needed][1]), (edges[name][0], at[name][1])
            axes.annotate("", end, start, arrowprops=_ARROW, zorder=1)
    write_ours(out, picture(figure, out.suffix, 160), PICTURE_OF_OURS)


def _left_and_right(text: Any, axes: Any) -> tuple[float, float]:
    """Return where the box around a text begins and ends, in the coordinates of the axes."""
    box = text.get_bbox_patch().get_window_extent().transformed(axes.transData.inverted())
    return float(box.x0), float(box.x1)
