"""What surrounds the numbers of downscalers: no byte depends on how cells are cut, ordered or kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from espo_luigi.downscaling import blocks
from espo_luigi.downscaling.base import DOWNSCALERS
from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.methods.dqm.ranking import as_quantiles
from espo_luigi.science import quality
from espo_luigi.science.coarse import CoarseGrid, coarse_cells, coarse_means, coarse_numbers
from espo_luigi.science.stack import stack_drop_nans

GRID = CoarseGrid(1.0)
ARGUMENTS: dict[str, dict[str, Any]] = {"MBCnSD": {"iterations": 3, "years": 3, "step": 2, "quantiles": 40}}
downscalers = pytest.mark.parametrize("downscaler", DOWNSCALERS)


def series(first: str, last: str, calendar: str = "noleap") -> xr.DataArray:
    """Return a field of precipitation, 5 x 6 coarse cells of 16, with a coast."""
    time = xr.date_range(first, last, calendar=calendar, use_cftime=True)
    lat, lon = 50.125 + 0.25 * np.arange(20), 5.125 + 0.25 * np.arange(24)
    rng = np.random.default_rng(time.size)
    values = np.maximum(rng.gamma(0.5, 4, (time.size, 20, 24)) - 0.2, 0).astype("float32")
    values[:, :3, :7] = np.nan
    coords = {"time": time, "lat": lat, "lon": lon}
    return xr.DataArray(values, coords, name="pr", attrs={"units": "mm d-1"})


@pytest.fixture(scope="module")
def given() -> dict[str, xr.DataArray]:
    """The reference, its coarse means, and two members on the same coarse cells."""
    fine = stack_drop_nans(series("2001-01-01", "2004-12-31").to_dataset())
    numbers = coarse_numbers(GRID, fine, 0.3)
    cells, _ = coarse_cells(GRID, numbers, west=5.0)
    coarse = coarse_means(fine, GRID, numbers).assign_coords(cells.coords)
    future = stack_drop_nans(series("2005-01-01", "2011-12-31").to_dataset())
    of_future = coarse_means(future, GRID, numbers).assign_coords(cells.coords)["pr"]
    members = xr.concat([of_future, of_future * 1.5], "realization").assign_coords(realization=["a", "b"])
    return {"fine": fine["pr"], "coarse": coarse["pr"], "adjusted": members.transpose("loc", "realization", "time")}


def downscaled(given: dict[str, xr.DataArray], downscaler: str, **changed: xr.DataArray) -> xr.DataArray:
    own = ARGUMENTS.get(downscaler, {})
    return blocks.downscale(**{**given, **changed}, downscaler=downscaler, grid=GRID, seed="pool+pr", **own)


@downscalers
def test_the_result_is_as_the_adjusted_series_on_fine_cells(given: dict[str, xr.DataArray], downscaler: str) -> None:
    got = downscaled(given, downscaler)
    assert got.dims == ("loc", "realization", "time")
    assert got.shape == (given["fine"].sizes["loc"], 2, 7 * 365)
    assert got.dtype == np.float32
    assert got.attrs["units"] == "mm d-1"
    assert got.attrs["bias_adjustment"].startswith(f"{downscaler}(grid=1.0")
    assert np.isfinite(got).all()
    assert (got >= 0).all()
    xr.testing.assert_equal(got["lat"], given["fine"]["lat"])


@downscalers
def test_no_byte_depends_on_the_cut_or_the_order_of_cells(given: dict[str, xr.DataArray], downscaler: str) -> None:
    whole = downscaled(given, downscaler)
    order = np.random.default_rng(0).permutation(whole.sizes["loc"])
    lazy = {name: one.chunk(loc=17) for name, one in given.items()}
    turned = downscaled(lazy, downscaler, fine=lazy["fine"].isel(loc=order))
    assert turned.chunks is not None
    np.testing.assert_array_equal(turned.values, whole.isel(loc=order).values)
    # A piece has whole coarse cells, and of the coarse level those around.
    own = GRID.numbers(whole["lat"].values, whole["lon"].values)
    south = np.flatnonzero(own < np.unique(own)[14])
    part = downscaled(given, downscaler, fine=given["fine"].isel(loc=south))
    np.testing.assert_array_equal(part.values, whole.isel(loc=south).values)


@downscalers
def test_members_do_not_depend_on_each_other(given: dict[str, xr.DataArray], downscaler: str) -> None:
    whole = downscaled(given, downscaler)
    turned = downscaled(given, downscaler, adjusted=given["adjusted"].isel(realization=[1, 0]))
    np.testing.assert_array_equal(turned.isel(realization=1).values, whole.isel(realization=0).values)


@downscalers
def test_the_last_step_is_the_value(given: dict[str, xr.DataArray], downscaler: str) -> None:
    got = downscaled(given, downscaler)
    own = ARGUMENTS.get(downscaler, {})
    told = blocks.steps(
        **given, cell=70, date="2008-03-01", member=1, downscaler=downscaler, grid=GRID, seed="pool+pr", **own
    )
    assert [told[0].name, told[-1].name] == ["coarse", "downscaled"]
    expected = got.isel(loc=70, realization=1).sel(time="2008-03-01").item()
    assert np.float32(told[-1].value) == pytest.approx(expected, rel=1e-6)


def test_series_that_differ_are_refused(given: dict[str, xr.DataArray]) -> None:
    with pytest.raises(DataError, match="K"):
        downscaled(given, "BCSD", fine=given["fine"].assign_attrs(units="K"))
    with pytest.raises(DataError, match="29"):
        downscaled(given, "BCSD", coarse=given["coarse"].isel(loc=slice(1, None)))
    with pytest.raises(ConfigurationError, match=r"downscaling\.arguments\.windows"):
        blocks.downscale(**given, downscaler="BCSD", grid=GRID, seed="", windows=3)
    with pytest.raises(ConfigurationError, match="BCSD, MBCnSD, QPLAD"):
        blocks.downscale(**given, downscaler="BCCA", grid=GRID, seed="")


def test_too_many_cells_are_refused(given: dict[str, xr.DataArray], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("espo_luigi.downscaling.mbcnsd.MBCnSD.most_cells", 15)
    with pytest.raises(DataError, match="16 cells"):
        downscaled(given, "MBCnSD")


@downscalers
def test_fine_cells_whose_coarse_cell_has_no_data_take_the_nearest(
    given: dict[str, xr.DataArray], downscaler: str
) -> None:
    whole = downscaled(given, downscaler)
    lost = 8
    adjusted = given["adjusted"].where(np.arange(given["adjusted"].sizes["loc"])[:, None, None] != lost)
    got = downscaled(given, downscaler, adjusted=adjusted.astype("float32"))
    assert np.isfinite(got).all()
    inside = GRID.numbers(whole["lat"].values, whole["lon"].values)
    numbers = GRID.numbers(given["coarse"]["lat"].values, given["coarse"]["lon"].values)
    assert not np.array_equal(got.values[inside == numbers[lost]], whole.values[inside == numbers[lost]])
    far = np.abs(numbers[lost] // 360 - inside // 360) > 1
    np.testing.assert_array_equal(got.values[far], whole.values[far])


def test_flags_are_those_of_the_coarse_cell_and_tell_where_it_is_the_nearest(given: dict[str, xr.DataArray]) -> None:
    adjusted = given["adjusted"]
    days = xr.zeros_like(adjusted, dtype=np.uint16)
    days[:, 0, 5] = given["coarse"]["lat"].astype(np.uint16)
    cells = adjusted.isel(time=0, drop=True).copy(data=np.full(adjusted.shape[:2], 16, np.uint8))
    beside = xr.Dataset({"pr": adjusted, "pr_flags": days, "pr_cell_flags": cells})
    way = {"downscaler": "BCSD", "grid": GRID, "seed": ""}
    got = blocks.downscale_variables(beside, given["coarse"].to_dataset(), given["fine"].to_dataset(), {"pr": way})
    lat = got["lat"].values
    assert got["pr_flags"].dtype == np.uint16
    near = np.floor(lat) == got["pr_flags"].isel(realization=0, time=5).values
    bits = got["pr_cell_flags"]
    assert bits.dtype == np.uint8
    masks = dict(zip(bits.attrs["flag_meanings"].split(), bits.attrs["flag_masks"].tolist(), strict=True))
    assert masks["coarse_cell_missing"] == 32
    is_missing = (bits.isel(realization=0).values & 32) > 0
    assert (bits.values & 16).all()
    assert 0 < is_missing.sum() < 20
    inside = GRID.numbers(lat, got["lon"].values)
    kept = GRID.numbers(given["coarse"]["lat"].values, given["coarse"]["lon"].values)
    np.testing.assert_array_equal(is_missing, ~np.isin(inside, kept))
    assert near[~is_missing].all()


def test_the_quantiles_of_the_adjustment_are_taken_and_those_at_an_end_marked(given: dict[str, xr.DataArray]) -> None:
    adjusted = given["adjusted"]
    ranks = np.random.default_rng(4).random(adjusted.shape)
    ranks[:, 1, 9], ranks[:, 0, 7] = 1.0, 0.0
    kept = adjusted.copy(data=as_quantiles(ranks))
    own = {"downscaler": "QPLAD", "grid": GRID, "seed": "pool+pr"}
    made = blocks.downscale_and_mark(**given, ranks=kept, **own)
    inner = (ranks > 0.01) & (ranks < 0.99)
    at = np.argsort(GRID.numbers(given["coarse"]["lat"].values, given["coarse"]["lon"].values))
    inside = GRID.numbers(made["lat"].values, made["lon"].values)
    numbers = GRID.numbers(given["coarse"]["lat"].values, given["coarse"]["lon"].values)
    place = at[np.minimum(np.searchsorted(numbers[at], inside), at.size - 1)]
    assert made["downscaled_beyond"].dtype == bool
    assert made["downscaled_beyond"].values[:, 1, 9].all() and made["downscaled_beyond"].values[:, 0, 7].all()
    known = np.isin(inside, numbers)
    assert not made["downscaled_beyond"].values[known][inner[place[known]]].any()
    assert 0 < made["downscaled_beyond"].values.mean() < 0.02
    # The same quantiles, without being kept, are those of the days' ranks.
    assert (made["downscaled"] != downscaled(given, "QPLAD")).mean() > 0.3
    told = blocks.steps(**given, ranks=kept, cell=70, date="2008-03-01", member=1, **own)
    step = {one.name: one.value for one in told}
    day = 3 * 365 + 59
    assert step["quantile"] == pytest.approx(ranks[place[70], 1, day], abs=1 / 131_068)
    assert np.float32(step["downscaled"]) == pytest.approx(made["downscaled"].values[70, 1, day])


def test_days_at_an_end_are_flagged_with_the_last_bit(given: dict[str, xr.DataArray]) -> None:
    days = xr.zeros_like(given["adjusted"], dtype=np.uint16).assign_attrs(flag_masks=[2], flag_meanings="made_wet") + 2
    days.attrs = {"flag_masks": [2], "flag_meanings": "made_wet"}
    beside = xr.Dataset({"pr": given["adjusted"], "pr_flags": days})
    ways = {"pr": {"downscaler": "QPLAD", "grid": GRID, "seed": ""}}
    got = blocks.downscale_variables(beside, given["coarse"].to_dataset(), given["fine"].to_dataset(), ways)["pr_flags"]
    assert quality.meanings(got)["downscaled_beyond"] == 1 << 15
    assert 0 < (got >= 1 << 15).mean() < 0.02 and (got & 2).all()
    cells = got.isel(time=0, drop=True).astype(np.uint8) * 0
    derived = quality.inherited({"pr_flags": got, "pr_cell_flags": cells}, {"prsn": ["pr"]})["prsn_flags"]
    assert quality.meanings(derived)["downscaled_beyond"] == 1 << 15
