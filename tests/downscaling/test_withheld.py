"""Both ways on withheld years: the measures are numpy's, seams are found, and whole coarse cells are sampled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from espo_luigi.downscaling import withheld
from espo_luigi.methods.perfect_model import Adjustment, Plan
from espo_luigi.science.coarse import CoarseGrid, coarse_cells, coarse_means, coarse_numbers
from espo_luigi.science.stack import stack_drop_nans

GRID = CoarseGrid(1.0)
KNOWN, LATER = (2001, 2008), (2009, 2016)


@pytest.fixture(scope="module")
def fine() -> xr.Dataset:
    """Rain of 4 x 4 cells in 2 x 2 coarse cells, alike over some cells; no edge of the coarse grid is in it."""
    time = xr.date_range("2001-01-01", "2016-12-31", calendar="noleap", use_cftime=True)
    noise = np.random.default_rng(0).normal(size=(time.size, 6, 6))
    smooth = sum(noise[:, row : row + 4, column : column + 4] for row in range(3) for column in range(3)) / 3
    values = np.where(smooth > 0, np.exp(smooth), 0).astype("float32")
    coords = {"time": time, "lat": 50.25 + 0.5 * np.arange(4), "lon": 10.25 + 0.5 * np.arange(4)}
    ds = xr.DataArray(values, coords, ("time", "lat", "lon"), "pr", {"units": "mm d-1"}).to_dataset()
    return stack_drop_nans(ds)


def means_of(fine: xr.Dataset) -> xr.Dataset:
    numbers = coarse_numbers(GRID, fine)
    return coarse_means(fine, GRID, numbers).assign_coords(coarse_cells(GRID, numbers, west=10.0)[0].coords)


@pytest.fixture(scope="module")
def compared(fine: xr.Dataset) -> xr.Dataset:
    how = Adjustment(("pr",), "QuantileDeltaMapping", {"period": KNOWN}, {"periods": [KNOWN, LATER]}, {"seed": "s"})
    ways: dict[str, Any] = {name: {"pr": {"downscaler": name, "seed": "s"}} for name in ("QPLAD", "BCSD")}
    found = withheld.compare(
        fine,
        means_of(fine),
        grid=GRID,
        plans={"pr": Plan(KNOWN, wet=1.0)},
        adjustments=[how],
        ways=ways,
        withheld=LATER,
    )
    return found.isel(variable=0)


def test_the_truth_s_measures_are_numpy_s(fine: xr.Dataset, compared: xr.Dataset) -> None:
    later = fine["pr"].sel(time=slice("2009", "2016")).transpose("time", "loc")
    weights = np.cos(np.deg2rad(later["lat"].values))
    area = np.average(later.values, axis=1, weights=weights)
    place = {(float(lat), float(lon)): at for at, (lat, lon) in enumerate(zip(later.lat, later.lon, strict=True))}
    expected = {
        "mean": area.mean(),
        "area_spread": area.std(ddof=1),
        "cell_spread": later.values.std(axis=0, ddof=1).mean(),
        "highest": later.values.max(axis=0).mean(),
        "wet_days": np.average((later.values >= 1).mean(axis=1)),
        "all_dry": (later.values < 1).all(axis=1).mean(),
    }
    pairs: dict[str, list[float]] = {"inside": [], "across": []}
    for (lat, lon), at in place.items():
        for beside in ((lat + 0.5, lon), (lat, lon + 0.5)):
            if beside in place:
                kind = "inside" if [int(one) for one in beside] == [int(lat), int(lon)] else "across"
                pairs[kind].append(np.corrcoef(later.values[:, at], later.values[:, place[beside]])[0, 1])
    expected |= {kind: np.mean(of) for kind, of in pairs.items()}
    assert {name: len(of) for name, of in pairs.items()} == {"inside": 16, "across": 8}
    assert compared["across"].sum() == 8 and compared.sizes["pair"] == 24
    for name, value in expected.items():
        assert float(compared["truth"].sel(measure=name)) == pytest.approx(value, rel=1e-5), name


def test_each_way_has_its_known_faults_in_multiples_of_the_noise(compared: xr.Dataset) -> None:
    multiples = (compared["error"] / compared["noise"]).to_pandas()
    assert list(multiples.index) == ["default", "QPLAD", "BCSD"]
    assert (abs(multiples["mean"]) < 1).all()
    # Interpolated days are too much alike, and so the area's means vary too much (Maraun 2013).
    assert multiples.loc["default", "inside"] > 3 and multiples.loc["default", "area_spread"] > 1
    # Patterns end at the edges of coarse cells, in each single pair.
    assert multiples.loc["QPLAD", "across"] < -3
    seams = compared["seam"].sel(way="QPLAD")
    assert seams[compared["across"].values].max() < seams[~compared["across"].values].min()


def test_whole_coarse_cells_near_the_middle_are_sampled(fine: xr.Dataset) -> None:
    wide = xr.concat([fine.assign_coords(lon=fine["lon"] + 2 * by) for by in range(5)], "loc").isel(time=[0])
    coarse = means_of(wide)
    chosen = withheld.sampled(wide, coarse, GRID, 30)
    _, counts = np.unique(GRID.numbers(chosen["lat"].values, chosen["lon"].values), return_counts=True)
    assert counts.tolist() == [4] * 7 and abs(float(chosen["lon"].mean()) - 15) < 0.5
    assert withheld.sampled(wide, coarse, GRID, 1).sizes["loc"] == 16, "four coarse cells have neighbours"
    north = withheld.sampled(wide, coarse.isel(loc=coarse["lat"] > 51), GRID, 30)
    assert float(north["lat"].min()) > 51, "fine cells without coarse data are left out"
