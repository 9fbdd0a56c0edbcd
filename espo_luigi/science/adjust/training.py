"""What training and adjusting a block need besides the numbers, and how a training dataset describes itself."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import xarray as xr

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.science.calendar import TimeAxis

ATTRIBUTE = "_xsdba_adjustment"
# What xclim wrote before its adjustment became the package xsdba.
OLD_ATTRIBUTE = "_xclim_adjustment"


@dataclass(frozen=True)
class Grouping:
    """Time steps that are treated together: a name such as "time.dayofyear" and a window in time steps."""

    name: str = "time.dayofyear"
    window: int = 1

    @classmethod
    def parse(cls, group: str | Mapping[str, Any]) -> Grouping:
        """Read a group as the configuration writes it: a name, or {group: name, window: n}."""
        if isinstance(group, str):
            return cls(group)
        unknown = set(group) - {"group", "window"}
        if "group" not in group or unknown:
            raise ConfigurationError(
                f"group is {dict(group)!r}; expected the keys group and window, "
                'for example {"group": "time.dayofyear", "window": 31}.'
            )
        return cls(str(group["group"]), int(group.get("window", 1)))

    @property
    def dim(self) -> str:
        """Dimension of the training dataset that the groups make, such as dayofyear."""
        return self.name.partition(".")[2] or "group"

    def __str__(self) -> str:
        window = f", window={self.window}" if self.window != 1 else ""
        return f"Grouper(name={self.name!r}{window})"


@dataclass(frozen=True, eq=False)
class TrainingSetup:
    """A training: thresholds are in the data's units; `train_args` are the method's own (kind, nquantiles, …)."""

    method: str
    group: Grouping
    train_args: Mapping[str, Any]
    time: TimeAxis
    units: str
    seed: str
    jitter_under: float | None = None
    adapt_freq: float | None = None
    adapt_freq_group: Grouping | None = None


@dataclass(frozen=True, eq=False)
class AdjustmentSetup:
    """An adjustment: `trained` describes the training, `adjust_args` are the method's own (detrend, interp, …)."""

    trained: TrainedObject
    adjust_args: Mapping[str, Any]
    time: TimeAxis
    seed: str
    jitter_under: float | None = None


class Backend(Protocol):
    """What computes blocks of cells: our kernels (`kernel_backend`) or xsdba (`xsdba_backend`)."""

    CELLS_IN_A_BLOCK: int
    # Whether blocks of the same grid have to be the same each time, because random numbers are drawn by block.
    FIXED_BLOCKS: bool

    def layout(self, inputs: xr.Dataset, setup: TrainingSetup) -> xr.Dataset:
        """Return the training dataset that will be made of `reference` and `historical`, as a lazy template."""

    def train_block(self, block: xr.Dataset, setup: TrainingSetup) -> xr.Dataset:
        """Train on a block with the variables `reference`, `historical` and `cell`."""

    def adjust_block(self, block: xr.Dataset, setup: AdjustmentSetup) -> xr.Dataset:
        """Adjust a block with the variables `simulation`, `cell` and the training's; `simulation` is the scenario."""


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
            group=Grouping(group["name"], group["window"]),
            units=state["train_units"],
            kind=state.get("kind"),
            state=state,
            attribute=json.dumps(encoded),
        )


def object_attribute(setup: TrainingSetup, kind: str) -> str:
    """JSON of a trained `DetrendedQuantileMapping` as xsdba 0.7 writes it."""
    name, calendar = setup.group.name, setup.time.calendar
    group_state = {"dim": "time", "add_dims": [], "prop": setup.group.dim, "name": name, "window": setup.group.window}
    state = {
        "hist_calendar": "proleptic_gregorian" if calendar == "standard" else calendar,
        "train_units": setup.units,
        "group": {"py/object": "xsdba.base.Grouper", "py/state": group_state},
        "kind": kind,
        "adapt_freq_thresh": None,
        "max_tail_factor": None,
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
    }
    present = {name: extra for name, extra in attributes.items() if name in training}
    return training.assign({name: training[name].assign_attrs(extra) for name, extra in present.items()})


def read_train_params(training: xr.Dataset) -> dict[str, Any]:
    """Return `train_params`: a mapping, or the text that saving made of it; empty if there is none."""
    params = training.attrs.get("train_params", {})
    return dict(ast.literal_eval(params) if isinstance(params, str) else params)


def preparation(params: Mapping[str, Any]) -> str:
    """Say how reference and historical were prepared, to be appended to `bias_adjustment`; empty if they were not."""
    steps = [
        f"{function}(ref, hist, {params[key]!r})"
        for key, function in (("jitter_under", "jitter_under_thresh"), ("adapt_freq", "adapt_freq"))
        if params.get(key) is not None
    ]
    return f", ref and hist were prepared with {' and '.join(steps)}" if steps else ""
