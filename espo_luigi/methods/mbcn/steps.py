"""The steps of one variable on one day in one cell, by the kernels that adjust variables together."""

from __future__ import annotations

import numpy as np

from espo_luigi.methods.base import Setup, Step
from espo_luigi.methods.dqm.windows import spans_of
from espo_luigi.methods.xsdba import Grouping
from espo_luigi.science.calendar import day_of
from espo_luigi.science.units import threshold_in

# Of the sample of a day, after xsdba's names of groups.
_SAMPLES = {
    "time": "all days",
    "time.month": "the days of this month",
    "time.dayofyear": "the {window} days around this day of the year",
    "5D": "the {window} five-day steps around this day's",
}


def steps_of_day(
    traced: np.ndarray, given: float, result: float, setup: Setup, *, variable: str, units: str, day: int, member: int
) -> list[Step]:
    """Return what `transform.adjust` does to one value; the last step, `result`, is the value that it becomes.

    `traced` has of the variable what `transform.TRACED` names, (5, member, time); `given` and `result` are the values
    before and after, in `units`. A missing value has no steps.
    """
    alone, before, after, donor, size = map(float, traced[:, member, day])
    if not np.isfinite(donor):
        return []
    training, how = setup.training, setup.training.get("by_variable", {}).get(variable, {})
    times, group = how.get("kind") == "*" and given != 0, Grouping.of(training["group"])
    factor, dry = f"× {alone / given:.4g}" if times else f"{alone - given:+.4g} {units}", how.get("adapt_freq_thresh")
    if dry and given <= threshold_in(dry, units) < alone:
        factor = "made wet"
    elif how.get("max_tail_factor") and alone == given:
        factor = "kept"
    who, when = divmod(int(donor), len(setup.time))
    pool = setup.members if setup.members and group.add_dims else ()
    years, windows = setup.time.year, setup.adjusting.get("moving_yearly_window")
    of = next(one for one in spans_of(years, windows) if one.kept_first <= day < one.kept_last)
    sample = f"{_SAMPLES[group.name].format(window=group.window)}, {years[of.first]}-{years[of.last - 1]}"
    sample += f", of {len(pool)} members" if pool else ""
    others = ", ".join(name for name in setup.units if name != variable)
    donor_day = f"{day_of(setup.time.index[when])}{f' of {pool[who]}' if pool else ''}"
    return [
        Step("univariate", alone, units, f"{factor}: {training['base']} of {variable} alone, in {sample}."),
        Step("rank before", before, "1", f"That of the univariate value, among {size:.0f}."),
        Step("rank after", after, "1", f"That of the day after {training['n_iter']} rotations with {others}."),
        Step(
            "result",
            float(setup.dtype.type(result)),
            units,
            f"The univariate value of {donor_day}, which has this rank.",
        ),
    ]
