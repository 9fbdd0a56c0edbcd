"""Noise below a threshold and adapted frequencies of dry days, against xsdba; the same bytes in any order."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from scipy import stats
from test_quantile_mapping import WINDOW, days_of, numbers_of, plan_for

from espo_luigi.methods.dqm import quantile_mapping as qm
from espo_luigi.methods.dqm.windows import plan_windows

pytestmark = pytest.mark.filterwarnings("ignore")


def wet_and_dry(n_years: int) -> tuple[np.ndarray, np.ndarray, xr.DataArray]:
    """Reference with more wet days than historical; with gaps in the second cell."""
    time = days_of("noleap", 1990, n_years)
    random = np.random.default_rng(0)
    shape = (2, time.size)
    reference, historical = (
        np.where(random.random(shape) < wet, random.gamma(0.7, 6, shape), 0).astype("f4") for wet in (0.6, 0.4)
    )
    historical[1, 100:300] = np.nan
    return reference, historical, time


def adapt(jitter: float | None, cells: slice = slice(None), threads: int = 1) -> tuple[np.ndarray, ...]:
    """Return the historical series, pth and dP0."""
    reference, historical, time = wet_and_dry(12)
    plan, reference, historical = plan_windows(numbers_of(time)[0], WINDOW), reference[cells], historical[cells]
    seeds = qm.cell_seeds("a run", np.arange(2))[cells]
    if jitter is not None:
        reference = qm.jitter(reference, jitter, seeds=seeds, series="reference", threads=threads)
        historical = qm.jitter(historical, jitter, seeds=seeds, threads=threads)
    return qm.adapt_frequencies(reference, historical, plan, 1.0, seeds=seeds, threads=threads)


@pytest.fixture(scope="module")
def adapted_by_xsdba() -> dict[float | None, tuple[xr.DataArray, ...]]:
    """What xsdba makes of the same two cells without and with noise: as four cells, which cost it no more than two."""
    import xsdba

    time = wet_and_dry(12)[2]
    plain = [
        xr.DataArray(one, dims=("loc", "time"), coords={"time": time}, attrs={"units": "mm/d"})
        for one in wet_and_dry(12)[:2]
    ]
    np.random.seed(0)
    noisy = [xsdba.processing.jitter_under_thresh(one, "0.01 mm/d") for one in plain]
    both = [xr.concat(pair, "loc").assign_attrs(units="mm/d") for pair in zip(plain, noisy, strict=True)]
    group = xsdba.Grouper("time.dayofyear", WINDOW)
    made = [one.transpose("loc", ...) for one in xsdba.processing.adapt_freq(*both, group=group, thresh="1 mm/d")]
    return {jitter: tuple(one[cells] for one in made) for jitter, cells in ((None, slice(2)), (0.01, slice(2, 4)))}


@pytest.mark.parametrize("jitter", [None, 0.01], ids=["ties", "noise"])
def test_frequencies_are_adapted_as_xsdba_does(
    jitter: float | None, adapted_by_xsdba: dict[float | None, tuple[xr.DataArray, ...]]
) -> None:
    _, historical, _ = wet_and_dry(12)
    adapted, pth, dry_share = adapted_by_xsdba[jitter]
    made, top, share = adapt(jitter)
    np.testing.assert_allclose(share, dry_share.values, rtol=1e-12)
    np.testing.assert_allclose(top, pth.values, rtol=1e-6)
    for cell in range(2):
        ours, theirs = made[cell], adapted.transpose("loc", "time").values[cell]
        was_dry = historical[cell] <= 1
        np.testing.assert_array_equal(ours[~was_dry], theirs[~was_dry])
        made_wet = [one[was_dry & (one > 1)] for one in (ours, theirs)]
        # The number is a sum of draws that are all but settled by the ranks: a few standard deviations of 20.
        assert abs(made_wet[0].size - made_wet[1].size) < 60
        # Two samples of one distribution; the seeds are fixed, so that this cannot fail by chance.
        assert stats.ks_2samp(*made_wet).pvalue > 0.01


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_noise_is_xsdbas_and_each_series_draws_by_itself(dtype: str) -> None:
    import xsdba

    before, draws = wet_and_dry(4)[1].astype(dtype), []
    before[0, :3] = np.array([0.01, np.nextafter(0.01, 0), 0.0099], dtype)
    kept, data = before.copy(), xr.DataArray(before, dims=("loc", "time"), attrs={"units": "mm/d"})
    theirs = xsdba.processing.jitter_under_thresh(data, "0.01 mm/d").values
    for series in ("reference", "historical", "simulation"):
        after = qm.jitter(before, 0.01, seeds=qm.cell_seeds("s", np.arange(2)), series=series)
        low = after != before
        np.testing.assert_array_equal(low, theirs != before)  # NaN differs from NaN in both
        low &= ~np.isnan(before)
        assert (after[low] > 0).all() and (after[low] <= np.array(0.01, dtype)).all()
        assert stats.ks_2samp(after[low], theirs[low]).pvalue > 0.01
        draws.append(after[low])
    assert np.abs(np.corrcoef(draws) - np.eye(3)).max() < 0.2
    np.testing.assert_array_equal(before, kept)


def test_prepared_bytes_depend_on_neither_blocks_nor_threads() -> None:
    whole, threaded, second = adapt(0.01), adapt(0.01, threads=2), adapt(0.01, slice(1, 2))
    for all_cells, by_threads, last in zip(whole, threaded, second, strict=True):
        np.testing.assert_array_equal(all_cells, by_threads)
        np.testing.assert_array_equal(all_cells[1:], last)


def test_trained_and_adjusted_bytes_do_not_depend_on_threads() -> None:
    reference, historical, time = wet_and_dry(4)
    reference, historical = np.tile(reference, (12, 1)) + 1, np.tile(historical, (12, 1)) + 1
    plan = plan_windows(numbers_of(time)[0], WINDOW)
    quantiles = np.linspace(0.1, 0.9, 5)
    one, two = (
        qm.train(reference, historical, plan, quantiles=quantiles, kind="*", threads=threads) for threads in (1, 2)
    )
    for first, second in zip(one, two, strict=True):
        np.testing.assert_array_equal(first, second)
    adjusted = [qm.adjust(historical, one, plan_for(time, one), kind="*", threads=threads)[0] for threads in (1, 2)]
    np.testing.assert_array_equal(adjusted[0], adjusted[1])


def test_seeds_differ_by_cell_and_by_text() -> None:
    first, second = (qm.cell_seeds(text, np.arange(1000)) for text in ("a", "b"))
    assert len({*first.tolist(), *second.tolist()}) == 2000
    np.testing.assert_array_equal(qm.cell_seeds("a", np.array([7])), first[7:8])
