"""MBCn of blocks of cells, against xsdba's on stacked variables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xarray as xr

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.methods import blocks
from espo_luigi.methods.base import Block, Setup, method_named
from espo_luigi.methods.mbcn import method as mbcn
from espo_luigi.science.calendar import TimeAxis

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
KNOWN, ALL, KINDS = ["2001", "2003"], ["2001", "2006"], {"dtr": "*", "pr": "*"}
BY_VARIABLE = {name: {"kind": kind} for name, kind in KINDS.items()}
WINDOWS = {"window": 3, "step": 3}


def series(seed: int, first: str, last: str, cells: int = 3) -> xr.Dataset:
    """Three variables of cells, dependent on each other."""
    time = xr.date_range(f"{first}-01-01", f"{last}-12-31", calendar="noleap", use_cftime=True)
    random = np.random.default_rng(seed)
    one, two, three = random.standard_normal((3, cells, time.size))
    season = np.cos(2 * np.pi * np.arange(time.size) / 365)
    values = {
        "tasmax": 280 + seed + 5 * one - 10 * season,
        "dtr": np.exp(2 + 0.3 * two + 0.1 * (1 + seed) * one),
        "pr": np.exp(three - 0.2 * one),
    }
    units = {"tasmax": "K", "dtr": "K", "pr": "mm d-1"}
    made = {name: (("loc", "time"), values[name].astype("f4"), {"units": units[name]}) for name in units}
    return xr.Dataset(made, {"time": time, "loc": np.arange(cells)})


REFERENCE, SIMULATION = series(0, "2001", "2003"), series(1, "2001", "2006")


def adjusted(training: dict[str, Any], cells: slice = slice(None), **arguments: Any) -> xr.Dataset:
    """The scenario of some of the cells."""
    return blocks.adjust_and_count(
        (arguments.pop("simulation", SIMULATION)).isel(loc=cells),
        method="MBCn",
        training_args={"period": KNOWN, "by_variable": BY_VARIABLE, **training},
        reference=arguments.pop("reference", REFERENCE).isel(loc=cells),
        seed="a",
        first_cell=cells.start or 0,
        **{"periods": ALL, "moving_yearly_window": WINDOWS, **arguments},
    ).load()


def stacked(data: xr.Dataset, years: slice) -> xr.DataArray:
    import xsdba

    return xsdba.stack_variables(data.sel(time=years).astype("f8"))


def test_the_scenario_is_xsdbas_with_the_same_rotations_in_windows_of_years_and_any_cells() -> None:
    import xsdba

    # xsdba sorts variables by name, and rotations follow the order of variables.
    names, own = ["dtr", "pr", "tasmax"], BY_VARIABLE | {"pr": TAIL}
    training = {"group": "time", "n_iter": 5, "nquantiles": 10, "by_variable": own}
    given = {"reference": REFERENCE[names], "simulation": SIMULATION[names]}
    made = adjusted(training, **given)
    xr.testing.assert_equal(adjusted(training, slice(1, 3), **given), made.isel(loc=[1, 2]))
    rotations = xr.DataArray(
        np.stack([mbcn.rotations("a", cell, 5, 3) for cell in range(3)]),
        {"multivar": names, "prime": names},
        ("loc", "iterations", "prime", "multivar"),
        attrs={"crd_dim": "multivar", "new_dim": "prime"},
    )
    ref, hist = (stacked(one, slice(*KNOWN)) for one in (REFERENCE, SIMULATION))
    how = {"nquantiles": 10, "group": xsdba.Grouper("time")}
    trained = xsdba.MBCn.train(ref, hist, base_kws=how, rot_matrices=rotations)
    sim = stacked(SIMULATION, slice("2004", "2006"))
    kinds: dict[str, dict[str, Any]] = {name: own.get(name, {"kind": "+"}) for name in names}
    expected = trained.adjust(sim, ref, hist, base=xsdba.QuantileDeltaMapping, base_kws_vars=kinds)
    for name in names:
        of_window = made[name].sel(time=slice("2004", "2006")).transpose("loc", "time")
        assert of_window.dtype == "f4"
        off = abs(of_window - expected.sel(multivar=name).transpose("loc", "time").values) > 1e-4 * of_window.std()
        assert off.mean() < 1e-3, name


TAIL: dict[str, Any] = {"kind": "*", "nquantiles": 30, "max_tail_factor": 1.5}
RAIN: dict[str, Any] = {"kind": "*", "jitter_under": {"thresh": "0.5 mm d-1"}, "adapt_freq_thresh": "1 mm d-1"}
SHARE: dict[str, Any] = {"additive_space": {"lower_bound": "0 K", "upper_bound": "30 K", "trans": "logit"}}


def pool_of(*seeds: int) -> xr.Dataset:
    """Members by their labels."""
    members = [series(seed, "2001", "2006").assign_coords(realization=f"m{seed}") for seed in seeds]
    return xr.concat(members, "realization").transpose("loc", "realization", "time").clip(max=290)


@pytest.mark.parametrize("together_", [True, False])
def test_noise_dry_days_bounds_and_members_are_the_same_however_cells_are_cut(together_: bool) -> None:
    add_dims = {"add_dims": ["realization"]} if together_ else {}
    group = {"group": "time.dayofyear", "window": 91, **add_dims}
    share = {"additive_space": SHARE["additive_space"] | {"margin": "0.3 K"}}
    training = {"group": group, "n_iter": 3, "by_variable": {"pr": RAIN, "dtr": share}}
    given: dict[str, Any] = {
        "simulation": pool_of(1, 2),
        "reference": REFERENCE.clip(max=290),
        "moving_yearly_window": None,
    }
    made = adjusted(training, **given)
    assert made["dtr"].dims == ("loc", "realization", "time") and made["dtr"].dtype == "f4"
    assert made["dtr"].min() >= 0 and made["dtr"].max() <= 30
    xr.testing.assert_equal(adjusted(training, slice(1, 2), **given), made.isel(loc=[1]))
    chunks = {"loc": 2, "time": 500}
    lazy = adjusted(training, **(given | {"simulation": given["simulation"].chunk(chunks)}))
    xr.testing.assert_equal(lazy, made)
    alone = adjusted(training, **(given | {"simulation": given["simulation"].isel(realization=[1])}))
    if together_:
        assert (alone["tasmax"] != made["tasmax"].isel(realization=[1])).mean() > 0.5
    else:
        xr.testing.assert_equal(alone, made.isel(realization=[1]))


def test_days_with_noise_of_amounts_are_dry_in_the_scenario_and_ranges_keep_theirs() -> None:
    with_dry_days = {
        name: one.assign(pr=one["pr"].where(one["pr"] > 0.8, 0))
        for name, one in (("reference", REFERENCE), ("simulation", SIMULATION))
    }
    by_variable = {"pr": RAIN, "dtr": {"kind": "*", "jitter_under": {"thresh": "0.5 K"}}}
    training = {"group": "time", "by_variable": by_variable, "n_iter": 2}
    made = adjusted(training, **with_dry_days).sel(time=slice(*KNOWN))
    assert not ((made["pr"] > 0) & (made["pr"] < 0.5)).any() and (made["pr"] >= 0).all() and (made["dtr"] > 0).all()
    assert abs((made["pr"] == 0).mean() - (with_dry_days["reference"]["pr"] == 0).mean()) < 0.05


def test_a_cell_without_one_of_the_variables_is_without_all_and_a_day_likewise() -> None:
    nothing = SIMULATION.copy(deep=True)
    nothing["pr"][1] = nothing["dtr"][2, 7] = np.nan
    made = adjusted({"group": "time", "n_iter": 1, "nquantiles": 5}, simulation=nothing)
    assert made.isel(loc=1).isnull().all().to_array().all() and made.isel(loc=0).notnull().all().to_array().all()
    gaps = made.isel(loc=2).isnull().to_array()
    assert gaps.isel(time=7).all() and gaps.sum() == 3


def test_values_at_a_bound_name_the_groups_key() -> None:
    training = {"group": "time", "n_iter": 1, "by_variable": {"dtr": SHARE}}
    reference = REFERENCE.assign(dtr=REFERENCE["dtr"].clip(max=29).where(REFERENCE["pr"] > 0.2, 0))
    with pytest.raises(
        DataError, match=r"`biasadjust\.variables\.\*\.training_args\.by_variable\.dtr\.additive_space\."
    ):
        adjusted(training, reference=reference)


def block_of(simulation: xr.Dataset, **by_variable: Any) -> tuple[Block, Setup]:
    """A block of three cells with what else its adjustment needs."""
    both = {"reference": REFERENCE, "historical": simulation.sel(time=slice(*KNOWN)), "simulation": simulation}
    block = {name: ds.to_dataarray().transpose("variable", "loc", "time") for name, ds in both.items()}
    training = {"group": {"group": "time"}, "n_iter": 2, "nquantiles": 10, "interp": "nearest"}
    training |= {"base": "QuantileDeltaMapping", "by_variable": by_variable}
    units = {str(name): str(one.attrs["units"]) for name, one in simulation.items()}
    axes = [TimeAxis.of(block[name]) for name in ("simulation", "reference")]
    setup = Setup(units, axes[0], np.dtype("f4"), training, "seed", calibration=axes[1])
    return {**block, "cell": xr.DataArray(np.arange(3), dims="loc")}, setup


def test_a_day_that_lacks_a_variable_has_no_steps() -> None:
    simulation = SIMULATION.copy(deep=True)
    simulation["pr"][0, [7, 8]], simulation["dtr"][0, 7], simulation["pr"][0, 9] = 0.1, np.nan, np.nan
    block, setup = block_of(simulation, pr=RAIN)
    method, nothing = method_named("MBCn"), xr.Dataset()
    one = {name: da.isel(loc=[0]) for name, da in block.items()}
    scenario = method.adjust(one, nothing, setup)["scenario"].sel(variable="pr").isel(loc=0)
    assert scenario.isnull().values[[7, 8, 9]].tolist() == [True, False, True]
    told = [method.steps(one, nothing, setup, day, variable="pr") for day in (7, 8, 9)]
    assert told[0] == told[2] == [] and told[1][0].name == "noise" and told[1][-1].value == float(scenario[8])


def test_values_at_bounds_are_moved_and_limited_as_numbers_of_the_series_type() -> None:
    bounds = {"lower_bound": "0 K", "upper_bound": "0.3 K", "trans": "logit", "clip_next_to_bounds": "permissive"}
    share = SIMULATION.assign(dtr=(SIMULATION["dtr"] / 30).clip(max=0.3).assign_attrs(units="K"))
    share["dtr"][:, :400] = 0
    block, setup = block_of(share, dtr={"additive_space": bounds})
    inside = mbcn._prepared(block, "simulation", setup)[1]
    # Of the next number above 0 in single precision, 1.4e-45, over 0.3; in double precision, -744.
    assert inside.min() == pytest.approx(np.log(2.0**-149 / 0.3), abs=0.5)
    back = mbcn._put_back(inside, "dtr", block, setup)
    assert back.dtype == "f4" and back.max().astype(float) <= 0.3 and back.min() >= 0


def test_samples_are_laid_out_once_whatever_the_order_of_blocks_and_periods() -> None:
    _, setup = block_of(SIMULATION)
    _, other = block_of(SIMULATION.sel(time=slice("2004", "2006")))
    other = replace(other, calibration=setup.calibration)
    first, second = mbcn._plan(setup), mbcn._plan(other)
    assert mbcn._plan(replace(setup)) is first and mbcn._plan(other) is second
    assert first is not second


LATITUDES = [80.0, 60.0, -10.0]


def potential(time: xr.DataArray) -> np.ndarray:
    """The daily mean at the top of the atmosphere by xclim, (cell, time) in W m-2."""
    from xclim.indices.helpers import extraterrestrial_solar_radiation

    noons = xr.date_range("2001-01-01 12:00", "2001-12-31 12:00", calendar="noleap", use_cftime=True)
    lat = xr.DataArray(LATITUDES, dims="loc", attrs={"units": "degrees_north"})
    of_year = extraterrestrial_solar_radiation(xr.DataArray(noons, {"time": noons}, ["time"]), lat) / 86400
    return of_year.transpose("loc", "time").values.clip(0)[:, np.asarray(time.dt.dayofyear) - 1]


def sunny(seed: int, first: str, last: str, clearness: float) -> xr.Dataset:
    """Temperature, and radiation as a part of the potential; twilight has a little more than astronomy gives."""
    made = series(seed, first, last)[["tasmax"]]
    part = np.random.default_rng(seed).beta(6 * clearness, 6 * (1 - clearness), made["tasmax"].shape)
    light = (potential(made["time"]) * part + 0.01 * (potential(made["time"]) > 0)).astype("f4")
    made = made.assign(rsds=(("loc", "time"), light, {"units": "W m-2"}))
    return made.assign_coords(lat=("loc", LATITUDES, {"units": "degrees_north"}))


def test_radiation_is_exchanged_as_a_part_of_what_the_day_can_have() -> None:
    """Otherwise a night gets the light of another day, and some days more than falls on the atmosphere."""
    reference, simulation = sunny(0, "2001", "2003", 0.6), sunny(1, "2001", "2006", 0.45)
    limit = potential(simulation["time"])
    beyond, nights = [], []
    for own in ({}, {"ratio_to": "potential_radiation"}):
        rsds = {"kind": "*", "jitter_under": {"thresh": "0.01 W m-2"}, **own}
        training = {"group": {"group": "5D", "window": 7}, "n_iter": 2, "by_variable": {"rsds": rsds}}
        made = adjusted(training, reference=reference, simulation=simulation)["rsds"].transpose("loc", "time")
        beyond.append((made.values > limit * (1 + 1e-6)).mean())
        nights.append(made.values[limit == 0].max())
    assert beyond[0] > 0.004 and nights[0] > 0.05, "a row of the issue"
    assert beyond[1] == 0 and nights[1] == 0 and made.notnull().all()
    # The reference's clearness, by its construction, in the whole year and around the polar night.
    for cell, most in ((0, 60), (0, 1000), (1, 1000), (2, 1000)):
        days = (limit[cell] > 1) & (limit[cell] < most)
        after, before = (one.values[cell][days].sum() / limit[cell][days].sum() for one in (made, simulation["rsds"]))
        assert abs(after - 0.6) < 0.04 < abs(before - 0.6), (LATITUDES[cell], after, before)


def test_a_part_of_the_potential_needs_latitudes_and_no_thresholds_of_amounts() -> None:
    training = {"group": "time.month", "by_variable": {"rsds": {"ratio_to": "potential_radiation"}}}
    given = {"reference": sunny(0, "2001", "2003", 0.6), "simulation": sunny(1, "2001", "2006", 0.45).drop_vars("lat")}
    with pytest.raises(DataError, match=r"rsds is a part of the potential radiation.*cells need a coordinate lat"):
        adjusted(training, **given)
    for own in ({"adapt_freq_thresh": "1 W m-2"}, {"small_amounts": {"thresh": "0.1 W m-2"}}):
        of_amounts = {"ratio_to": "potential_radiation", "kind": "*", **own}
        with pytest.raises(ConfigurationError, match="ratio_to has no adapt_freq_thresh, small_amounts or additive"):
            adjusted(training | {"by_variable": {"rsds": of_amounts}}, **given)
