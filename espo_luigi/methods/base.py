"""What training and adjusting a block need besides the numbers, and how a training dataset describes itself."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import xarray as xr

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.science.calendar import TimeAxis
from espo_luigi.science.chunks import REALIZATION
from espo_luigi.science.units import threshold_in

ATTRIBUTE = "_xsdba_adjustment"
# What xclim wrote before its adjustment became the package xsdba.
OLD_ATTRIBUTE = "_xclim_adjustment"


@dataclass(frozen=True)
class Grouping:
    """Values that are treated together: a name such as "time.dayofyear", a window in time steps, more dimensions."""

    name: str = "time.dayofyear"
    window: int = 1
    add_dims: tuple[str, ...] = ()

    @classmethod
    def parse(cls, group: str | Mapping[str, Any]) -> Grouping:
        """Read a group as the configuration writes it: a name, or {group: name, window: n, add_dims: [realization]}."""
        if isinstance(group, str):
            return cls(group)
        unknown = set(group) - {"group", "window", "add_dims"}
        if "group" not in group or unknown:
            raise ConfigurationError(
                f"group is {dict(group)!r}; expected the keys group and window, and add_dims for a pool, "
                'for example {"group": "time.dayofyear", "window": 31}.'
            )
        add_dims = group.get("add_dims") or ()
        add_dims = (add_dims,) if isinstance(add_dims, str) else tuple(add_dims)
        if add_dims not in ((), (REALIZATION,)):
            raise ConfigurationError(
                f"group has add_dims {list(add_dims)!r}; only [{REALIZATION}], a simulation's members, can be pooled."
            )
        return cls(str(group["group"]), int(group.get("window", 1)), add_dims)

    @property
    def dim(self) -> str:
        """Dimension of the training dataset that the groups make, such as dayofyear."""
        return self.name.partition(".")[2] or "group"

    def __str__(self) -> str:
        window = f", window={self.window}" if self.window != 1 else ""
        add_dims = f"add_dims={list(self.add_dims)!r}, " if self.add_dims else ""
        return f"Grouper({add_dims}name={self.name!r}{window})"


@dataclass(frozen=True, eq=False)
class TrainingSetup:
    """A training: thresholds are in the data's units; `train_args` are the method's own (kind, nquantiles, …).

    `members` are the labels of the simulation's members, None without a dimension for them; `first_cell` is the first
    cell's place in the domain; `additive_space` has the arguments of xsdba's transformation.
    """

    method: str
    group: Grouping
    train_args: Mapping[str, Any]
    time: TimeAxis
    units: str
    seed: str
    jitter_under: float | None = None
    adapt_freq: float | None = None
    adapt_freq_group: Grouping | None = None
    members: tuple[str, ...] | None = None
    first_cell: int | np.ndarray = 0
    additive_space: Mapping[str, Any] | None = None

    @property
    def adapt_freq_thresh(self) -> float | None:
        """The threshold of the adaptation inside of the training, in the data's units."""
        given = self.train_args.get("adapt_freq_thresh")
        return None if given is None else threshold_in(given, self.units)


@dataclass(frozen=True, eq=False)
class AdjustmentSetup:
    """An adjustment: `trained` describes the training, `adjust_args` are the method's own (detrend, interp, …)."""

    trained: TrainedObject
    adjust_args: Mapping[str, Any]
    time: TimeAxis
    seed: str
    jitter_under: float | None = None
    members: tuple[str, ...] | None = None
    first_cell: int | np.ndarray = 0
    additive_space: Mapping[str, Any] | None = None


def member_seeds(setup: TrainingSetup | AdjustmentSetup) -> list[str]:
    """Return a seed for each member: its draws do not depend on the other members, nor on their number."""
    return [setup.seed] if setup.members is None else [f"{setup.seed}+{label}" for label in setup.members]


@dataclass(frozen=True)
class Step:
    """A step by which a method adjusts a value: its name, the value after it, the value's units, and a sentence."""

    name: str
    value: float
    unit: str
    sentence: str


class Backend(Protocol):
    """What computes blocks of cells: our kernels (`kernel_backend`) or xsdba (`xsdba_backend`)."""

    CELLS_IN_A_BLOCK: int
    # Whether blocks of the same grid have to be the same each time, because random numbers are drawn by block.
    FIXED_BLOCKS: bool
    # Whether `adjust_block` returns the counts `treated`, too.
    COUNTS_TREATMENTS: bool

    def layout(self, inputs: xr.Dataset, setup: TrainingSetup) -> xr.Dataset:
        """Return the training dataset that will be made of `reference` and `historical`, as a lazy template."""

    def train_block(self, block: xr.Dataset, setup: TrainingSetup) -> xr.Dataset:
        """Train on a block with the variables `reference`, `historical` and `cell`."""

    def adjust_block(self, block: xr.Dataset, setup: AdjustmentSetup) -> xr.Dataset:
        """Adjust a block with the variables `simulation`, `cell` and the training's; `simulation` is the scenario."""

    def steps(self, block: xr.Dataset, setup: AdjustmentSetup, step: int, member: int) -> list[Step]:
        """Return the steps of a value of a block of one cell, as `adjust_block` gets it; empty if there are none."""


@dataclass(frozen=True)
class TrainedObject:
    """The trained object as a training dataset's attribute holds it, readable without xsdba."""

    method: str
    group: Grouping
    units: str
    kind: str | None
    state: Mapping[str, Any] = field(repr=False)
    attribute: str = field(repr=False)

    @classmethod
    def of(cls, training: xr.Dataset) -> TrainedObject:
        """Read the attribute of a training dataset, xsdba's or old xclim's.

        Raises
        ------
        DataError
            If there is no such attribute.
        """
        text = training.attrs.get(ATTRIBUTE) or training.attrs.get(OLD_ATTRIBUTE)
        if text is None:
            raise DataError(
                f"not a training dataset: neither attribute {ATTRIBUTE} nor {OLD_ATTRIBUTE} is there, "
                f"only {sorted(map(str, training.attrs))}. Train again."
            )
        encoded = json.loads(text.replace("xclim.sdba.", "xsdba."))
        state = encoded["py/state"]
        for added_since_xclim in ("adapt_freq_thresh", "max_tail_factor"):
            state.setdefault(added_since_xclim, None)
        group = state["group"]["py/state"]
        return cls(
            method=encoded["py/object"].rpartition(".")[2],
            group=Grouping(group["name"], group["window"], tuple(group["add_dims"])),
            units=state["train_units"],
            kind=state.get("kind"),
            state=state,
            attribute=json.dumps(encoded),
        )


def object_attribute(setup: TrainingSetup, kind: str) -> str:
    """JSON of a trained `DetrendedQuantileMapping` as xsdba 0.7 writes it."""
    name, calendar = setup.group.name, setup.time.calendar
    add_dims = list(setup.group.add_dims)
    group_state = {
        "dim": "time",
        "add_dims": add_dims,
        "prop": setup.group.dim,
        "name": name,
        "window": setup.group.window,
    }
    state = {
        "hist_calendar": "proleptic_gregorian" if calendar == "standard" else calendar,
        "train_units": setup.units,
        "group": {"py/object": "xsdba.base.Grouper", "py/state": group_state},
        "kind": kind,
        "adapt_freq_thresh": setup.train_args.get("adapt_freq_thresh"),
        "max_tail_factor": setup.train_args.get("max_tail_factor"),
    }
    return json.dumps({"py/object": f"xsdba.adjustment.{setup.method}", "py/state": state})


def with_variable_attributes(training: xr.Dataset, setup: TrainingSetup) -> xr.Dataset:
    """Give the variables of a training dataset their attributes, the same whichever path computes them."""
    kind = {"kind": setup.train_args["kind"]} if "kind" in setup.train_args else {}
    attributes = {
        "af": {"units": setup.units, **kind, **training["af"].attrs},
        "hist_q": {"units": setup.units},
        "scaling": kind,
        "pth": {"units": setup.units, "long_name": "Smallest value that frequency adaptation did not change"},
        "dP0": {"units": "1", "long_name": "Proportion of values under the threshold that were adapted in frequency"},
        "hist_q_raw": {"units": setup.units},
        "P0_ref": {"units": "1", "long_name": "Proportion of the reference's values under the threshold"},
        "P0_hist": {"units": "1", "long_name": "Proportion of the simulation's values under the threshold"},
    }
    present = {name: extra for name, extra in attributes.items() if name in training}
    return training.assign({name: training[name].assign_attrs(extra) for name, extra in present.items()})


def read_train_params(training: xr.Dataset) -> dict[str, Any]:
    """Return `train_params`: a mapping, or the text that saving made of it; empty if there is none."""
    params = training.attrs.get("train_params", {})
    return dict(ast.literal_eval(params) if isinstance(params, str) else params)


def preparation(params: Mapping[str, Any]) -> str:
    """Say how a pool was trained and series were prepared, to be appended to `bias_adjustment`; may be empty."""
    steps = [
        f"{function}(ref, hist, {params[key]!r})"
        for key, function in (("jitter_under", "jitter_under_thresh"), ("adapt_freq", "adapt_freq"))
        if params.get(key) is not None
    ]
    # xscen names the arguments since it trains pools.
    trained = f" with xsdba_train_args: {params['xsdba_train_args']}" if "xsdba_train_args" in params else ""
    return trained + (f", ref and hist were prepared with {' and '.join(steps)}" if steps else "")
