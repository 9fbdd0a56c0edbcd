"""The members of a pool along a dimension, and one of them again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.attributes import IMPOSSIBLE_VALUES, INSERTED_DAYS, LET_THROUGH, REPAIRS, STATED_UNITS
from espo_luigi.science.calendar import calendar_of
from espo_luigi.science.chunks import REALIZATION, join

# Attributes that tell what was done to a member; those of a pool list them by member, as JSON.
_OF_MEMBERS = {
    name: f"{name}_of_members" for name in (REPAIRS, INSERTED_DAYS, LET_THROUGH, IMPOSSIBLE_VALUES, STATED_UNITS)
}


def pool_of_members(members: Sequence[xr.Dataset], names: Sequence[str]) -> xr.Dataset:
    """Return a pool: its members along `realization`, first, by their names; lazy.

    Raises `DataError` if calendars, days or cells differ.

    Parameters
    ----------
    members
        Datasets of the same variables, days and cells. Attributes on which they agree are kept; repairs, inserted
        days, stated units and problems of raw files are kept of each member.
    names
        The labels along `realization`.
    """
    calendars = {name: calendar_of(member) for name, member in zip(names, members, strict=True)}
    if len(set(calendars.values())) > 1:
        listed = ", ".join(f"{calendar} of {name}" for name, calendar in calendars.items())
        raise DataError(f"members of a pool have several calendars ({listed}); expected one. Exclude some of them.")
    along, what = pd.Index(list(names), name=REALIZATION), f"the members {', '.join(names)} of a pool"
    pool = join(members, along, "drop_conflicts", what=what)
    told, attrs = {}, {name: each.attrs for name, each in zip(names, members, strict=True)}
    for attribute, listed in _OF_MEMBERS.items():
        known = {name: own[attribute] for name, own in attrs.items() if attribute in own}
        told[listed] = json.dumps(known) if known else ""
    return _with_attrs(pool, told)


def told_of_members(attribute: str, counts: xr.DataArray) -> dict[str, Any]:
    """Return an attribute with the count of each member, or one count without members; empty if all are 0."""
    if REALIZATION not in counts.dims:
        return {attribute: int(counts)} if counts else {}
    labels = map(str, counts[REALIZATION].values)
    known = {label: int(count) for label, count in zip(labels, counts.values, strict=True) if count}
    return {_OF_MEMBERS[attribute]: json.dumps(known)} if known else {}


def _with_attrs(ds: xr.Dataset, told: Mapping[str, Any]) -> xr.Dataset:
    """The dataset with these attributes, of which empty ones are left out, and no others about members."""
    about = {*_OF_MEMBERS, *_OF_MEMBERS.values()}
    out = ds.copy(deep=False)
    out.attrs = {name: value for name, value in ds.attrs.items() if name not in about}
    out.attrs |= {name: value for name, value in told.items() if value}
    return out


def member(pool: xr.Dataset, name: str) -> xr.Dataset:
    """Return one member of a pool, without the dimension; a dataset without it as it is. Lazy.

    Raises
    ------
    DataError
        If the pool has no such member.
    """
    if REALIZATION not in pool.dims:
        return pool
    labels = [str(label) for label in pool[REALIZATION].values]
    if name not in labels:
        raise DataError(f"the pool has the members {', '.join(labels)}; expected {name}, too. Make the pool again.")
    told = {attribute: json.loads(pool.attrs.get(listed, "{}")).get(name) for attribute, listed in _OF_MEMBERS.items()}
    return _with_attrs(pool.isel({REALIZATION: labels.index(name)}, drop=True), told)
