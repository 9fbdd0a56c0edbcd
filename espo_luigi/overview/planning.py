"""The plan of a part of `All`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from luigi.task import Task

from espo_luigi.driver.run import each_after_its_needs
from espo_luigi.driver.settings import unchanging_settings
from espo_luigi.errors import ParameterError
from espo_luigi.overview.plan import Plan, make_plan
from espo_luigi.tasks.all import All
from espo_luigi.tasks.selection import Selection


def plan_of(rules: Sequence[str], selection: Selection) -> Plan:
    """Plan a run of `All`, or until some of its rules, narrowed by a selection.

    Raises
    ------
    ParameterError
        If a rule, a simulation or a region is none of the run's, or nothing is left.
    """
    with unchanging_settings():
        return _plan_of(rules, selection)


def _plan_of(rules: Sequence[str], selection: Selection) -> Plan:
    if rules and (selection.until or selection.only):
        raise ParameterError("TASK is a rule until which the run goes, and excludes --until and --only")
    everything = list(All().everything())
    wanted = [replace(selection, until=rule) for rule in rules] or [selection]
    ends: dict[str, Task] = {}
    for one in wanted:
        ends |= {task.task_id: task for task in (one.ends(everything) if one else everything)}
    allowed = selection.allowed(each_after_its_needs(everything)) if selection else None
    return make_plan(list(ends.values()), allowed=allowed, covers_everything=not selection and not rules)
