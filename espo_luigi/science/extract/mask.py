"""The mask of a source grid's cells, such as land, made from a fixed field."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping
from typing import Any

import xarray as xr

from espo_luigi.errors import ConfigurationError

logger = logging.getLogger(__name__)

OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}


def create_mask(
    field: xr.DataArray, *, where_operator: str, where_threshold: float, mask_nans: bool = True
) -> xr.DataArray:
    """Return 1 where a field compares with a threshold, and 0 elsewhere, as `xscen.regrid.create_mask`; lazy.

    Parameters
    ----------
    field : xarray.DataArray
        Any dimensions, such as `sftlf` (y, x); of several times the first counts.
    where_operator : str
        One of `OPERATORS`.
    where_threshold : float
        In the field's own unit: land that fills a quarter of a cell is 25 where `sftlf` is in %.
    mask_nans : bool
        What cells without a value are: 0, or 1 if it is false.

    Returns
    -------
    xarray.DataArray
        `mask`, of the field's type, on its coordinates. The attribute `where_threshold` tells the comparison.

    Raises
    ------
    ConfigurationError
        If the operator is unknown, or the threshold is no number.
    """
    if where_operator not in OPERATORS:
        known = ", ".join(OPERATORS)
        raise ConfigurationError(f"where_operator is {where_operator!r}; expected one of {known}.")
    if isinstance(where_threshold, bool) or not isinstance(where_threshold, int | float):
        raise ConfigurationError(
            f"where_threshold is {where_threshold!r}; expected a number, in the unit of {field.name}."
        )
    if field.attrs.get("units") == "%" and 0 < where_threshold <= 1:
        message = "%s is in %%, and where_threshold is %g: nearly all cells count. A quarter of a cell is 25."
        logger.warning(message, field.name, where_threshold)
    values = field.isel(time=0) if "time" in field.dims else field
    chosen = OPERATORS[where_operator](values, where_threshold)
    chosen = chosen & values.notnull() if mask_nans else chosen | values.isnull()
    mask = chosen.astype(field.dtype).rename("mask")
    mask.attrs = {
        "long_name": "Mask",
        "where_threshold": f"{field.name} {where_operator} {where_threshold}",
        "mask_NaNs": str(mask_nans),
    }
    return mask
