"""Verdicts find what adjusting changed, and nothing where there is nothing: as often as they say."""

import numpy as np
import pytest
import xarray as xr

from espo_luigi.science.chunks import REALIZATION
from espo_luigi.science.diagnose import added_value
from espo_luigi.science.diagnose.climate_aspects import aspects_of, yearly_sums
from espo_luigi.science.variables import VARIABLES

SOURCES = ["reference", "raw", "adjusted"]
KNOWN = aspects_of(VARIABLES)
REPETITIONS = 200
# Of 200 repetitions, so many false verdicts at a level of 5 % have a chance of 1 in 1000.
MOST_FALSE = 21


def of_years(seed: int, *, bias: float, members: int = 1, years: int = 30, cells: int = 12) -> list[xr.Dataset]:
    """Sums of years of neighbouring cells, in which raw and adjusted are equally far from the reference, if at all."""
    random = np.random.default_rng(seed)

    def values(members: int) -> np.ndarray:
        common = random.standard_normal((members, years, 1))
        return np.sqrt(0.7) * common + np.sqrt(0.3) * random.standard_normal((members, years, cells))

    reference = np.broadcast_to(values(1), (members, years, cells))
    raw = values(members)
    adjusted = 0.8 * raw + 0.6 * values(members)
    of = np.stack([reference, raw + bias, adjusted - bias])
    one = np.ones_like(of)
    dims = ("source", REALIZATION, "{}", "year", "cell")
    linear, squares = (tuple(dim.format(name) for dim in dims) for name in ("sum_2", "sum_3"))
    pool = xr.Dataset(
        {
            "lag1_tasmax_JJA": (linear, np.stack([of, one], axis=2)),
            "between_years_pr": (squares, np.stack([of, of**2, one], axis=2)),
        },
        {"source": SOURCES},
    )
    return [pool.isel({REALIZATION: member}) for member in range(members)]


@pytest.mark.parametrize(("members", "bias"), [(1, 0.0), (1, 1.5), (2, 1.5)])
def test_where_nothing_differs_verdicts_are_false_in_five_of_a_hundred_repetitions(members: int, bias: float) -> None:
    false = {"verdict": dict.fromkeys(KNOWN, 0), "off": dict.fromkeys(KNOWN, 0)}
    for seed in range(REPETITIONS):
        compared = added_value.compare_aspects(
            of_years(seed, bias=bias, members=members), adjusted=["tasmax"], seed=str(seed), known=KNOWN
        )
        for one in added_value.verdicts(compared):
            false["verdict"][one.aspect] += one.nearer + one.farther > 0
            false["off"][one.aspect] += one.adjusted_off > 0
    assert max(false["verdict"].values()) <= MOST_FALSE, false
    assert false["off"]["between_years_pr"] <= MOST_FALSE
    # A bias of this aspect is found in each repetition; without a bias, nothing is there to be found.
    off = false["off"]["lag1_tasmax_JJA"]
    assert off == REPETITIONS if bias else off <= MOST_FALSE


def daily(seed: int, *, persistence: float, warmer: float = 0.0, years: int = 30, cells: int = 6) -> xr.Dataset:
    """Series of tasmax, tasmin and pr whose persistence and mean are known, in display units."""
    random = np.random.default_rng(seed)
    time = xr.date_range("1981-01-01", periods=365 * years, calendar="noleap", use_cftime=True)
    noise, wet = (random.standard_normal((time.size, cells)) for _ in range(2))
    for day in range(1, time.size):
        for series in (noise, wet):
            series[day] = persistence * series[day - 1] + np.sqrt(1 - persistence**2) * series[day]
    cycle = 12 * np.sin(2 * np.pi * (np.arange(time.size) - 100) / 365)[:, None]
    tasmax = 10 + warmer + cycle + 4 * noise
    lower = 6 + 2 * random.random(tasmax.shape)
    values = {"tasmax": tasmax, "tasmin": tasmax - lower, "pr": np.where(wet > 0.2, np.exp(wet) * 4, 0.0)}
    attrs = {name: {"units": VARIABLES[name].shown_units} for name in values}
    attrs["pr"]["standard_name"] = "precipitation_flux"
    return xr.Dataset({name: (("time", "cell"), values[name], attrs[name]) for name in values}, {"time": time})


def compared(reference: xr.Dataset, raw: xr.Dataset, adjusted: xr.Dataset) -> dict[str, added_value.Verdict]:
    sources = dict(zip(SOURCES, (reference, raw, adjusted), strict=True))
    beside = {name: ds.roll(cell=1) for name, ds in sources.items()}
    period = (int(reference["time"].dt.year[0]), int(reference["time"].dt.year[-1]))
    sums = yearly_sums(sources, beside, period=period)
    found = added_value.compare_aspects([sums], adjusted=["tasmax", "dtr", "pr"], seed="test", known=KNOWN)
    return {one.aspect: one for one in added_value.verdicts(found)}


def mapped(simulation: xr.Dataset, reference: xr.Dataset) -> xr.Dataset:
    """Each variable's sorted values replaced by the reference's: all quantiles become right, and no order changes."""
    found = {}
    for name, da in simulation.data_vars.items():
        order = np.argsort(np.argsort(da.values, axis=0), axis=0)
        found[name] = da.copy(data=np.take_along_axis(np.sort(reference[name].values, axis=0), order, axis=0))
    return xr.Dataset(found)


@pytest.fixture(scope="module")
def reference() -> xr.Dataset:
    return daily(1, persistence=0.6)


def test_a_bias_that_was_adjusted_is_found_and_persistence_is_told_to_be_as_wrong_as_before(
    reference: xr.Dataset,
) -> None:
    raw = daily(2, persistence=0.85, warmer=3.0)
    found = compared(reference, raw, mapped(raw, reference))
    for name in ("above_q95_tasmax", "mean_tasmax_JJA", "mean_tasmin_DJF", "snow_days"):
        assert found[name].word == "nearer" and found[name].nearer > 0.9, found[name]
    for name in ("lag1_tasmax_JJA", "wet_after_wet", "wet_spell", "longest_dry_spell"):
        one = found[name]
        assert one.word == "no different" and not one.calibrated, one
        assert one.raw_off == one.adjusted_off == 1, "adjusting could not mend it"
    assert not [one for one in found.values() if one.is_worse or one.is_broken]


def test_a_simulation_without_bias_keeps_all_aspects(reference: xr.Dataset) -> None:
    raw = daily(3, persistence=0.6)
    found = compared(reference, raw, mapped(raw, reference))
    assert set(found) == set(aspects_of(["tasmax", "tasmin", "pr"]))
    # At a level of 5 %, two of the aspects are within chance.
    assert sum(one.word != "no different" for one in found.values()) <= 2
    assert not [one for one in found.values() if one.is_worse or one.is_broken]


def test_an_adjustment_that_destroys_the_order_of_days_is_called_worse(reference: xr.Dataset) -> None:
    raw = daily(4, persistence=0.6)
    # Any order of days within the year keeps its quantiles.
    order = np.concatenate([365 * year + np.random.default_rng(year).permutation(365) for year in range(30)])
    shuffled = raw.isel(time=order).assign_coords(time=raw["time"])
    found = compared(reference, raw, shuffled)
    for name in ("lag1_tasmax_DJF", "wet_spell", "wet_after_dry", "heat_wave_days"):
        assert found[name].word == "farther" and found[name].is_worse, found[name]
    assert found["wet_days"].word == "no different" and not found["wet_days"].is_worse
    assert found["mean_tasmax_JJA"].is_broken, "days of winter came to summer"


def test_tasmin_of_tasmax_and_range_is_calibrated_in_its_mean_but_not_in_its_quantiles() -> None:
    adjusted = ["tasmax", "dtr", "pr"]
    assert KNOWN["mean_tasmin_DJF"].is_calibrated(adjusted)
    assert not KNOWN["above_q95_tasmin"].is_calibrated(adjusted)
    assert KNOWN["above_q95_tasmin"].is_calibrated(["tasmin"])
    assert not any(KNOWN[name].is_calibrated(["tasmin", "tasmax", "pr"]) for name in ("wet_spell", "snow_days"))


def test_a_pool_has_the_mean_of_its_members_and_less_noise() -> None:
    pool = of_years(7, bias=0.0, members=3)
    together = added_value.compare_aspects(pool, adjusted=[], seed="a", known=KNOWN)
    alone = [added_value.compare_aspects([one], adjusted=[], seed="a", known=KNOWN) for one in pool]
    mean = xr.concat([one["value"] for one in alone], "member").mean("member")
    xr.testing.assert_allclose(together["value"], mean)
    noise = xr.concat([one["noise"] for one in alone], "member").mean("member")
    # The reference's noise stays; that of three members is smaller by the root of 3.
    ratio = (together["noise"] / noise).sel(aspect="lag1_tasmax_JJA").mean()
    np.testing.assert_allclose(ratio, np.sqrt((1 + 1 / 3) / 2), rtol=0.08)


def test_the_noise_of_a_mean_is_its_standard_error_and_the_same_seed_gives_the_same_numbers() -> None:
    sums = of_years(8, bias=0.0, cells=400)
    found = added_value.compare_aspects(sums, adjusted=[], seed="a", known=KNOWN)
    expected = np.sqrt(2 / 30)
    noise = found["noise"].sel(aspect="lag1_tasmax_JJA", side="raw").mean()
    np.testing.assert_allclose(noise, expected, rtol=0.15)
    xr.testing.assert_identical(found, added_value.compare_aspects(sums, adjusted=[], seed="a", known=KNOWN))
    assert not found["p_value"].equals(added_value.compare_aspects(sums, adjusted=[], seed="b", known=KNOWN)["p_value"])


def test_few_years_or_a_cell_without_data_have_no_verdict() -> None:
    few = added_value.compare_aspects(of_years(9, bias=0.0, years=9), adjusted=[], seed="a", known=KNOWN)
    assert few["value"].notnull().all() and not list(added_value.verdicts(few))
    sea = of_years(9, bias=0.0)[0].where(xr.DataArray(np.arange(12) != 4, dims="cell"), 0.0)
    found = added_value.compare_aspects([sea], adjusted=[], seed="a", known=KNOWN)
    for name in ("p_value", "verdict", "value"):
        missing = found[name].isnull().any([dim for dim in found[name].dims if dim != "cell"])
        assert np.flatnonzero(missing).tolist() == [4], name


def test_correlations_of_variables_adjusted_together_are_calibrated_except_with_dry_days() -> None:
    names, both = ["tasmax", "tasmin", "pr", "hurs", "sfcWind"], [("pr", "hurs", "dtr"), ("sfcWind", "tasmax")]
    apart, together = aspects_of(names), aspects_of(names, together=both)
    assert set(together) - set(apart) == {
        f"corr_{pair}_{season}" for pair in ("hurs_dtr", "sfcWind_tasmax") for season in ("DJF", "JJA")
    }
    calibrated = {name for name, aspect in together.items() if aspect.is_calibrated([*names, "dtr"])}
    within = {f"corr_{pair}_JJA" for pair in ("hurs_dtr", "sfcWind_tasmax")}
    assert {name for name in calibrated if name.startswith("corr") and name.endswith("JJA")} == within
    assert not any(aspect.is_calibrated(names) for name, aspect in apart.items() if name.startswith("corr"))
    assert not {name for name in calibrated if name.startswith(("lag1", "wet_spell", "next_cell"))}


def test_what_a_further_source_lacks_is_nan_and_verdicts_are_those_without_it() -> None:
    reference, raw = daily(1, persistence=0.6, years=10, cells=2), daily(2, persistence=0.6, years=10, cells=2)
    sources = dict(zip(SOURCES, (reference, raw, mapped(raw, reference)), strict=True))
    further = sources | {"DQM": sources["adjusted"][["tasmax", "pr"]]}
    found = []
    for of in (sources, further):
        sums = yearly_sums(of, of, period=(1981, 1990), together=[("tasmax", "pr")])
        found.append(added_value.compare_aspects([sums], adjusted=["tasmax", "pr"], seed="test", known=KNOWN))
    without, made = found
    xr.testing.assert_identical(made.sel(source=list(SOURCES)), without)
    more = made["value"].sel(source="DQM")
    lacking = [str(name) for name in made["aspect"].values if "tasmin" in str(name) or "dtr" in str(name)]
    assert lacking and np.isnan(more.sel(aspect=[*lacking, "snow_days"])).all()
    there = [str(name) for name in made["aspect"].values if str(name) not in (*lacking, "snow_days")]
    xr.testing.assert_equal(
        more.sel(aspect=there).drop_vars("source"),
        made["value"].sel(source="adjusted", aspect=there).drop_vars("source"),
    )


def test_correlations_of_a_group_do_not_depend_on_traces_of_rain_on_dry_days() -> None:
    reference = daily(1, persistence=0.6, years=10, cells=2)
    # Warm days are the wet days, and noise takes the place of dry days' zeros, as adjustments leave it.
    follows = np.where(reference["tasmax"] > 22, reference["tasmax"] - 20, 0.0)
    reference["pr"].values[:] = follows
    traces = np.random.default_rng(5).uniform(1e-6, 0.9, follows.shape)
    product = reference.assign(pr=reference["pr"].copy(data=np.where(follows == 0, traces, follows)))
    sources = dict(zip(SOURCES, (reference, reference, product), strict=True))
    off = {}
    for together in ((), [("pr", "tasmax")]):
        sums = yearly_sums(sources, sources, period=(1981, 1990), together=together)
        made = added_value.compare_aspects(
            [sums], adjusted=[], seed="a", known=aspects_of(sources["raw"], together=together)
        )
        value = made["value"].sel(aspect="corr_tasmax_pr_JJA")
        off[bool(together)] = float(abs(value.sel(source="adjusted") - value.sel(source="reference")).max())
        long_name = str(made["long_name"].sel(aspect="corr_tasmax_pr_JJA").item())
        assert long_name.endswith("JJA, dry days alike") == bool(together)
    assert off[False] > 0.01 and off[True] == pytest.approx(0, abs=1e-12)
