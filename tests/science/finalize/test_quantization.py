"""Rounded mantissas, against numcodecs' BitRound."""

from __future__ import annotations

import dask
import numpy as np
import pytest
import xarray as xr
from numcodecs import BitRound

from espo_luigi.science.finalize.quantization import CONTAINER, round_bits, round_mantissas
from espo_luigi.store.write import prepared, write_zarr

DAYS, ROWS, COLUMNS = 103, 7, 11
SPECIAL = (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 1.1754944e-38, 3.4028235e38)


def values_of(dtype: str) -> np.ndarray:
    """Values of all magnitudes, ties among them, and those that are special."""
    rng = np.random.default_rng(8)
    values = rng.normal(0, 1, (DAYS, ROWS, COLUMNS)) * 10.0 ** rng.integers(-12, 12, (DAYS, ROWS, COLUMNS))
    values[0] = 1 + np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) / 2**12
    values[1, 0, : len(SPECIAL)] = SPECIAL
    with np.errstate(over="ignore"):
        return values.astype(dtype)


def product() -> xr.Dataset:
    dims = ("time", "lat", "lon")
    pr = (dims, values_of("f4"), {"units": "kg m-2 s-1"})
    coords = {"lat": np.linspace(45, 46, ROWS), "orog": (("lat", "lon"), values_of("f4")[2])}
    return xr.Dataset({"pr": pr, "tasmax": (dims, values_of("f8")), "day": ("time", np.arange(DAYS))}, coords)


@pytest.mark.parametrize("dtype", ["f4", "f8", ">f4"])
@pytest.mark.parametrize("keepbits", [1, 2, 9, 12, 22, 23])
def test_values_are_those_of_numcodecs(dtype: str, keepbits: int) -> None:
    values, codec = values_of(dtype.lstrip(">")), BitRound(keepbits)
    expected = codec.decode(codec.encode(values)).view(values.dtype).reshape(values.shape)
    rounded = round_mantissas(values.astype(dtype), keepbits)
    np.testing.assert_array_equal(rounded, expected)
    np.testing.assert_array_equal(np.signbit(rounded), np.signbit(expected))


def test_a_nan_whose_mantissa_is_full_stays_nan() -> None:
    full = np.array([0x7FFFFFFF, 0xFFFFFFFF], "u4").view("f4")
    assert np.isnan(round_mantissas(full, 12)).all()


def test_the_relative_error_is_half_of_the_last_kept_bit_at_most() -> None:
    ds = product()
    error = abs(round_bits(ds, ["pr"], 12, version="1").pr - ds.pr) / abs(ds.pr)
    ordinary = (abs(ds.pr) > 1e-20) & (abs(ds.pr) < 1e20)
    assert 2**-14 < float(error.where(ordinary).max()) <= 2**-13


def test_the_rounded_variables_say_so_as_cf_has_it() -> None:
    ds = product()
    rounded = round_bits(ds, ["pr"], 9, version="1.2.3")
    assert rounded.pr.attrs == {"units": "kg m-2 s-1", "quantization": CONTAINER, "quantization_nsb": 9}
    assert rounded[CONTAINER].attrs == {"algorithm": "bitround", "implementation": "espo_luigi version 1.2.3"}
    assert CONTAINER not in rounded.pr.coords and rounded[CONTAINER].ndim == 0
    xr.testing.assert_identical(rounded[["tasmax", "day"]], ds[["tasmax", "day"]])
    assert "quantization" not in ds.pr.attrs


def test_blocks_of_any_size_give_the_same_lazily_and_a_store_holds_it(tmp_path) -> None:
    ds = product()
    rounded = round_bits(ds.chunk(time=20, lat=3, lon=4), ["pr"], 12, version="1")
    assert dask.is_dask_collection(rounded.pr.data)
    xr.testing.assert_identical(rounded.compute(), round_bits(ds, ["pr"], 12, version="1"))
    write_zarr(prepared(rounded), tmp_path / "rounded.zarr")
    with xr.open_zarr(tmp_path / "rounded.zarr", consolidated=False) as stored:
        xr.testing.assert_equal(stored.pr.load(), rounded.pr.compute())
        assert stored.pr.attrs["quantization_nsb"] == 12 and stored[CONTAINER].attrs["algorithm"] == "bitround"
