"""Training and adjusting one block of cells with our own kernels; same blocks, same results as `xsdba_path`."""

from __future__ import annotations

import xarray as xr

from espo_luigi.science.training import AdjustmentSetup, TrainingSetup

# Enough to keep every thread busy; a block's memory grows with it.
CELLS_IN_A_BLOCK = 600
# Every cell is computed, and draws, by itself.
FIXED_BLOCKS = False


def why_not_train(setup: TrainingSetup) -> str | None:
    """Say why the kernels cannot do this training; None if they can."""
    return "there are no kernels yet"


def why_not_adjust(setup: AdjustmentSetup) -> str | None:
    """Say why the kernels cannot do this adjustment; None if they can."""
    return "there are no kernels yet"


def layout(inputs: xr.Dataset, setup: TrainingSetup) -> xr.Dataset:
    """Return the training dataset that will be made of `reference` and `historical`, as a lazy template."""
    raise NotImplementedError


def train_block(block: xr.Dataset, setup: TrainingSetup) -> xr.Dataset:
    """Train on a block with the variables `reference`, `historical` (cells, time) and `cell` (cells)."""
    raise NotImplementedError


def adjust_block(block: xr.Dataset, setup: AdjustmentSetup) -> xr.Dataset:
    """Adjust a block with the variables `simulation`, `cell` and the training's; `simulation` becomes the scenario."""
    raise NotImplementedError
