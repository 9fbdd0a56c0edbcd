"""Statistics over simulations, against xscen (tests/golden/make_ensemble.py) and xclim."""

import re
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray as xr
import xclim
import xclim.ensembles as xens
from packaging.version import Version
from tg_ensemble import FOLDER, FUTURE, REFERENCE, opened

from espo_luigi.errors import DataError
from espo_luigi.science.outcomes.climatology import by_year
from espo_luigi.science.outcomes.ensemble import (
    MEMBER,
    Part,
    agreement,
    join,
    name_missing,
    partition,
    present,
    statistics,
    variability,
    weigh,
)
from espo_luigi.store.write import prepared

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
with_ensemble = pytest.mark.skipif(not FOLDER.is_dir(), reason="no ../shared/data/ensemble-tg beside the project")
HORIZONS = ["1981-2010", "2041-2070"]


def climatology(values, *, units="K", horizons=HORIZONS, lat=(45.0, 46.0), dtype="float32", **attrs):
    """A member: (horizon, lat, lon), of a number, or of a number by horizon."""
    field = np.broadcast_to(np.asarray(values, dtype).reshape(-1, 1, 1), (len(horizons), 2, 3)).copy()
    da = xr.DataArray(field, dims=("horizon", "lat", "lon"), attrs={"units": units})
    coords = {"horizon": horizons, "lat": list(lat), "lon": [5.0, 6.0, 7.0]}
    return xr.Dataset({"txx": da}, coords, attrs)


def yearly(years, *, seed, calendar="standard", trend=0.03, **coords):
    time = xr.date_range(
        f"{years[0]}-01-01", f"{years[1]}-01-01", freq="YS", calendar=calendar, use_cftime=calendar != "standard"
    )
    values = np.random.default_rng(seed).normal(0, 0.3, time.size) + trend * np.arange(time.size)
    return xr.DataArray(values, {"time": time}, ("time",), attrs={"units": "K"}).assign_coords(coords)


def yearly_of(da):
    """(year, ...) of (time, ...)."""
    return by_year(da.to_dataset(name="x"))["x"]


@with_ensemble
def test_statistics_of_members_in_three_calendars_are_xscens():
    ens = join(opened())
    there = present(ens)
    models = {label: label.split()[0] for label in opened()}
    with xr.open_dataset(GOLDEN / "ensemble-statistics.nc", engine="h5netcdf") as golden:
        # All members that a year has count here, and in xscen; CNRM-CM5 lacks 70 years.
        ours = statistics(ens, there).drop_vars("tg_mean_members")
        xr.testing.assert_allclose(ours.drop_attrs(), golden[list(ours)], rtol=1e-5)
        weighted = statistics(ens, there, weights={"tg_mean": weigh(there["tg_mean"], models)})
        of_xscen = golden[[f"{name}_weighted" for name in ours]].rename({f"{name}_weighted": name for name in ours})
        xr.testing.assert_allclose(weighted.drop_vars("tg_mean_members").drop_attrs(), of_xscen, rtol=1e-5)


@with_ensemble
def test_robustness_over_20_years_is_xscens():
    ens = join(opened())["tg_mean"]
    future, reference = ens.sel(time=slice(*FUTURE)), ens.sel(time=slice(*REFERENCE))
    changes = future.mean("time", skipna=False) - reference.mean("time", skipna=False)
    ours = agreement(
        changes, present(changes.to_dataset())["tg_mean"], thresholds=variability(yearly_of(reference), 20)
    )
    with xr.open_dataset(GOLDEN / "ensemble-robustness.nc", engine="h5netcdf") as golden:
        assert 0 < golden["tg_mean_changed"].min() < golden["tg_mean_changed"].max()
        for name in ("changed", "positive", "changed_positive", "negative", "changed_negative", "agree"):
            xr.testing.assert_allclose(ours[name].drop_attrs(), golden[f"tg_mean_{name}"], rtol=1e-5)
        xr.testing.assert_equal(ours["advanced"].drop_attrs(), golden["tg_mean_robustness_categories"])


def test_a_change_over_30_years_is_compared_with_the_variability_of_30_years():
    reference = yearly((1981, 2010), seed=1, calendar="noleap")
    days = (reference["time"] - reference["time"][0]).dt.days.values
    sigma = float((reference - np.polyval(np.polyfit(days, reference, 1), days)).std())
    threshold = variability(yearly_of(reference), 30)
    np.testing.assert_allclose(threshold, 1.645 * sigma * np.sqrt(2 / 30), rtol=1e-5)
    change = xr.DataArray([threshold * 1.1] * 5, dims=MEMBER)
    future = (reference + threshold * 1.1).expand_dims({MEMBER: 5})
    of_xclim = xens.robustness_fractions(future, reference.expand_dims({MEMBER: 5}), test="ipcc-ar6-c")
    ours = agreement(change, xr.ones_like(change, bool), thresholds=xr.full_like(change, float(threshold)))
    assert float(ours["changed"]) == 1.0
    assert int(ours["advanced"]) == 1
    if Version(xclim.__version__) < Version("0.63"):
        assert float(of_xclim["changed"]) == 0.0


def test_a_future_of_another_length_than_the_reference_has_its_own_share_of_the_variability():
    reference = yearly((1981, 2010), seed=2)
    ratio = float(variability(yearly_of(reference), 20) / variability(yearly_of(reference), 30))
    np.testing.assert_allclose(ratio, np.sqrt((1 / 30 + 1 / 20) / (2 / 30)), rtol=1e-6)


@pytest.mark.parametrize(("kind", "factor"), [("abs.", 1), ("rel.", 1), ("pct.", 100)])
def test_seasonal_and_relative_changes_are_tested_against_the_variability_of_each_season(kind, factor):
    shape, time = (5, 160, 4), xr.date_range("1980-12-01", periods=160, freq="QS-DEC", calendar="noleap")
    draws = np.random.default_rng(3)
    values = 10 + draws.normal(0, 1, shape) + np.linspace(0, 2, 160)[:, None] * draws.random((5, 1, 4))
    # The first winter begins before the data.
    values[:, 0] = np.nan
    members = {
        f"m{i}": xr.Dataset({"x": (("time", "cell"), one, {"units": "mm"})}, {"time": time}, {"cat:xrfreq": "QS-DEC"})
        for i, one in enumerate(values)
    }
    of_year = [by_year(ds)["x"] for ds in members.values()]
    reference, future = (
        xr.concat([da.sel(year=slice(*ends)) for da in of_year], MEMBER) for ends in ((1981, 2000), (2001, 2020))
    )
    base = reference.mean("year")
    changes = (future.mean("year") - base) / (1 if kind == "abs." else base) * factor + (kind == "rel.")
    thresholds = xr.concat([variability(da.sel(year=slice(1981, 2000)), 20, kind) for da in of_year], MEMBER)
    made = agreement(changes.assign_attrs(delta_kind=kind), xr.ones_like(changes[:, 0, 0], bool), thresholds=thresholds)
    for season, first in (("DJF", 1), ("MAM", 0), ("JJA", 0)):
        # xclim takes 20 years for granted, and the first winter has no value.
        before, after = (
            da.sel(season=season, drop=True)
            .isel(year=slice(lacks, None))
            .rename(year="time")
            .assign_coords(time=xr.date_range("1990", periods=20 - lacks, freq="YS"))
            for da, lacks in ((reference, first), (future, 0))
        )
        theirs = xens.robustness_fractions(after, before, test="ipcc-ar6-c")
        assert 0 < theirs["changed"].mean() < 1
        np.testing.assert_allclose(made["changed"].sel(season=season), theirs["changed"])


def test_variability_needs_as_many_years_as_the_climatology():
    reference = yearly_of(yearly((1981, 2010), seed=2)).astype(float)
    reference[[3, 7, 20]] = np.nan
    assert np.isnan(variability(reference, 30))
    assert 0 < variability(reference, 30, least=27) < 1
    assert np.isnan(variability(reference, 30, least=28))
    # Two years are on a straight line whatever the variability.
    assert np.isnan(variability(reference[:2], 30, least=1))


def test_statistics_have_no_attributes_that_are_those_of_the_change_only():
    ens = join({"A": climatology([1, 2]), "B": climatology([2, 4])})
    own = {
        "standard_name": "air_temperature",
        "cell_methods": "time: mean",
        "delta_kind": "abs.",
        "long_name": "Change",
    }
    ens["txx"].attrs |= own | {"units_metadata": "temperature: on_scale"}
    made = statistics(ens, present(ens))
    assert made["txx_members"].attrs == {"long_name": "Number of members with a value", "units": "1"}
    assert made["txx_stdev"].attrs["units_metadata"] == "temperature: difference"
    assert made["txx_p50"].attrs["units_metadata"] == "temperature: on_scale"
    shares = agreement(ens["txx"], present(ens)["txx"], thresholds=xr.full_like(ens["txx"], 0.5))
    for name, share in shares.items():
        assert not share.attrs.keys() & (own.keys() - {"long_name"} | {"units_metadata", "test"})
        assert share.attrs["units"] == "1"
        assert share.attrs["long_name"] != "Change"
        assert ("flag_values" in share.attrs) == (name in ("simple", "advanced"))
    assert "robust" in shares["advanced"].attrs["long_name"].lower()
    assert "significant" not in str(shares["simple"].attrs)


@pytest.mark.parametrize(
    ("signs", "simple", "advanced"), [("++++-", 1, 1), ("+++--", 2, 3), ("oooo+", 2, 2), ("+++++", 1, 1)]
)
def test_categories_are_those_of_ar6(signs, simple, advanced):
    changes = xr.DataArray([{"+": 2.0, "-": -2.0, "o": 0.1 * (-1) ** i}[s] for i, s in enumerate(signs)], dims=MEMBER)
    thresholds = xr.full_like(changes, 1.0)
    made = agreement(changes, xr.ones_like(changes, bool), thresholds=thresholds)
    assert (int(made["simple"]), int(made["advanced"])) == (simple, advanced)
    assert set(agreement(changes, xr.ones_like(changes, bool))) == {"positive", "negative", "agree", "simple"}


def test_categories_can_be_written_and_their_flags_read(tmp_path):
    changes = xr.DataArray([[1.0, np.nan]] * 2, dims=(MEMBER, "cell"), name="t").chunk(cell=1)
    made = agreement(changes, xr.DataArray([True, True], dims=MEMBER))
    prepared(made).to_zarr(tmp_path / "made.zarr", zarr_format=2)
    prepared(made).to_netcdf(tmp_path / "made.nc")
    for written in (xr.open_zarr(tmp_path / "made.zarr"), xr.open_dataset(tmp_path / "made.nc")):
        np.testing.assert_array_equal(written["simple"], [1, np.nan])
        assert written["simple"].attrs["flag_meanings"] == "high_model_agreement low_model_agreement"
        assert np.asarray(written["simple"].attrs["flag_values"]).tolist() == [1, 2]
    with netCDF4.Dataset(tmp_path / "made.nc") as of_file:
        assert of_file["simple"].dtype == of_file["simple"].flag_values.dtype == "int8"


def test_votes_do_not_move_four_of_five_models_under_80_percent_by_round_off():
    members = [
        (f"m{model}", f"m{model}r{member}") for model, count in enumerate((3, 4, 3, 4, 2)) for member in range(count)
    ]
    changes = xr.DataArray(
        [-1.0 if model == "m4" else 1.0 for model, _ in members], {MEMBER: [m for _, m in members]}, (MEMBER,)
    )
    there = xr.ones_like(changes, bool)
    weights = weigh(there, {member: model for model, member in members})
    assert float(xens.robustness_fractions(changes, weights=weights)["agree"]) < 0.8
    assert int(agreement(changes, there, weights=weights)["simple"]) == 1


def test_a_member_without_variability_leaves_the_cell_without_advanced_category_only():
    changes = xr.DataArray([[1.0, 1.0, np.nan], [1.0, 1.0, 1.0]], dims=(MEMBER, "cell"))
    thresholds = xr.DataArray([[0.5, np.nan, 0.5], [0.5, 0.5, 0.5]], dims=(MEMBER, "cell"))
    there = xr.DataArray([True, True], dims=MEMBER)
    made = agreement(changes, there, thresholds=thresholds)
    assert made["advanced"].values.tolist() == [1, 99, 99]
    assert np.isnan(made["changed"].values).tolist() == [False, True, True]
    assert np.isnan(made["agree"].values).tolist() == [False, False, True]
    assert made["simple"].values.tolist() == [1, 1, 99]
    assert agreement(changes, there, thresholds=thresholds, fewest=1)["advanced"].values.tolist() == [1, 1, 1]


def test_a_member_without_a_horizon_is_named_and_the_others_make_its_statistics():
    short = climatology([3], horizons=HORIZONS[:1])
    empty = climatology([5, np.nan])
    ens = join(
        {"A": climatology([1, 2]), "B": climatology([2, 4]), "short": short, "empty": empty}, {"D": "never warms"}
    )
    made = statistics(ens, present(ens))
    assert made.attrs["ensemble_members"] == "A; B; short; empty"
    assert made.attrs["ensemble_missing"] == "D: never warms\nshort: txx 2041-2070\nempty: txx 2041-2070"
    assert made["txx_p50"].sel(horizon="2041-2070").values.tolist() == [[3.0] * 3] * 2
    assert made["txx_members"][:, 0, 0].values.tolist() == [4, 2]


def test_a_cell_that_a_member_of_the_period_lacks_has_no_statistics_unless_fewer_are_allowed():
    hole = climatology([1, 2])
    hole["txx"][0, 0, 0] = np.nan
    ens = join({"A": climatology([3, 4]), "hole": hole})
    made = statistics(ens, present(ens))
    assert np.isnan(made["txx_mean"].values).sum() == 1
    assert made["txx_members"][0, 0].values.tolist() == [1, 2, 2]
    assert made["txx_members"].dtype == "int16"
    assert made["txx_mean"].dtype == "float32"
    assert made["txx_mean"].attrs["units"] == "K"
    assert float(statistics(ens, present(ens), fewest=1)["txx_mean"][0, 0, 0]) == 3


def test_missing_years_are_named_by_their_runs():
    there = xr.Dataset(
        {"t": ((MEMBER, "time"), [[0, 1, 1, 0, 0, 1, 0], [1, 1, 1, 1, 1, 1, 0]])},
        {MEMBER: ["A", "B"], "time": xr.date_range("1950", periods=7, freq="YS")},
    )
    # The last year ends after the data of both.
    assert name_missing(there.astype(bool)) == {"A": "t 1950, 1953-1954"}


def test_an_ensemble_keeps_neither_attributes_nor_scalars_in_which_members_differ():
    one = climatology([1, 2], source="A", domain="QC").assign_coords(height=2.0, crs=0)
    other = climatology([1, 2], source="B", domain="QC").assign_coords(height=10.0, crs=0)
    ens = join({"A": one, "B": other})
    assert {key: ens.attrs.get(key) for key in ("source", "domain")} == {"source": None, "domain": "QC"}
    assert "crs" in ens.coords
    assert "height" not in ens.coords
    assert one.attrs == {"source": "A", "domain": "QC"}


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (climatology([1, 2], units="degC"), "coordinates txx (K and degC)."),
        (climatology([1, 2], lat=(45.0, 46.5)), "coordinates lat."),
        (climatology([1, 2]).rename(txx="tnn"), "coordinates tnn, txx."),
    ],
)
def test_members_of_different_grids_units_or_variables_are_refused(other, what):
    with pytest.raises(DataError, match="'A' and 'B' differ in the variables, units or coordinates") as refused:
        join({"A": climatology([1, 2]), "B": other})
    assert what in str(refused.value)


def test_coordinates_with_round_off_are_one_grid_and_heights_may_be_nan_at_sea():
    heights = "lat", [100.0, np.nan]
    other = climatology([3, 4]).assign_coords(orog=heights, lat=np.float32([45.0, 46.0]) + np.float32(4e-6))
    joined = join({"A": climatology([1, 2]).assign_coords(orog=heights), "B": other})
    assert joined.sizes["lat"] == 2 and joined["orog"].isnull().values.tolist() == [False, True]


def test_an_ensemble_without_members_says_why():
    with pytest.raises(DataError, match=r"no member \(A: stays below \+4 K\)"):
        join({}, {"A": "stays below +4 K"})


def test_joining_leaves_the_members_as_they_were():
    member = yearly((2000, 2010), seed=1, calendar="noleap").to_dataset(name="t")
    before = member.copy(deep=True)
    join({"A": member, "B": yearly((2000, 2010), seed=1).to_dataset(name="t")})
    xr.testing.assert_identical(member, before)
    assert member["time"].dt.calendar == "noleap"


def test_a_model_has_one_vote_which_the_members_of_a_period_share():
    there = xr.DataArray([[1, 1], [1, 0], [1, 1]], {MEMBER: ["a1", "a2", "b1"]}, (MEMBER, "horizon")).astype(bool)
    made = weigh(there, {"a1": "a", "a2": "a", "b1": "b"})
    np.testing.assert_allclose(made, [[0.75, 1.0], [0.75, 0.0], [1.5, 1.0]])
    given = weigh(there, given={"a1": 3, "a2": 2, "b1": 1})
    np.testing.assert_allclose(given, [[1.5, 1.5], [1, 0], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("given", "what"),
    [({"a": 1}, "'b': nan"), ({"a": 1, "b": -1}, "'b': -1"), ({"a": 0, "b": 0}, "all are 0")],
)
def test_unusable_weights_are_named(given, what):
    there = xr.DataArray([True, True], {MEMBER: ["a", "b"]}, (MEMBER,))
    with pytest.raises(DataError, match="weights of the ensemble are not usable") as refused:
        weigh(there, given=given)
    assert what in str(refused.value)


PARTS = {f"{m}{s}{d}": Part(m, s, d) for m in "ABC" for s in ("ssp126", "ssp585") for d in ("x", "y")}


def series_of(parts, years=(1950, 2050)):
    return {
        label: yearly(
            years, seed=seed, calendar=["standard", "noleap", "360_day"][seed % 3], trend=0.02 + 0.01 * (seed % 4)
        )
        for seed, label in enumerate(parts)
    }


def partitioned(series, parts, method="hawkins-sutton", cells=1):
    """Of several cells of the same series, the last without a value."""
    factors = xr.DataArray([*range(1, cells + 1), np.nan], dims="cell")
    ens = join({label: (da * factors).assign_attrs(da.attrs).to_dataset(name="x") for label, da in series.items()})
    there = present(ens)["x"]
    return partition(ens["x"].chunk(cell=2), there, parts, (1971, 2000), method)


def cube_of(series, parts, dims):
    """The series as xclim wants them, put there by hand; NaN without a member."""
    first = next(iter(series.values()))
    names = [sorted({part[place] for part in parts.values()}) for place in range(len(dims))]
    values = np.full([len(of) for of in names] + [first.size], np.nan)
    for label, part in parts.items():
        values[tuple(of.index(part[place]) for place, of in enumerate(names))] = series[label].values
    time = xr.date_range("1950-01-01", periods=first.size, freq="YS")
    return xr.DataArray(values, {**dict(zip(dims, names, strict=True)), "time": time}, (*dims, "time"))


def test_variance_is_partitioned_after_hawkins_and_sutton(monkeypatch):
    monkeypatch.setattr("espo_luigi.science.outcomes.ensemble._BLOCK_BYTES", 6 * 101 * 2 * 8)
    parts = {label: part._replace(downscaling="") for label, part in PARTS.items() if part.downscaling == "x"}
    series = series_of(parts)
    # A second member of a model, and a model without all scenarios, are not taken.
    others = {"A2": parts["Assp126x"], "D": Part("D", "ssp126")}
    made = partitioned(series | series_of(others), parts | others, cells=5)
    expected = xens.fractional_uncertainty(xens.hawkins_sutton(cube_of(series, parts, ("model", "scenario")))[1])
    assert made.dims == ("uncertainty", "time", "cell")
    assert len(made.chunksizes["cell"]) == 3
    assert made.attrs == {"units": "%", "partition": "hawkins-sutton"}
    for cell in range(5):
        theirs = expected.sel(uncertainty=made["uncertainty"]).transpose("uncertainty", "time")
        np.testing.assert_allclose(made.isel(cell=cell), theirs, rtol=1e-4)
    assert made.isel(cell=5).isnull().all()


def test_variance_is_partitioned_after_lafferty_and_sriver_with_several_methods_of_downscaling():
    parts = {label: part for label, part in PARTS.items() if label != "Bssp126y"}
    series = series_of(parts)
    made = partitioned(series, parts, "lafferty-sriver")
    cube = cube_of(series, parts, ("model", "scenario", "downscaling"))
    expected = xens.fractional_uncertainty(xens.lafferty_sriver(cube)[1])
    np.testing.assert_allclose(made.isel(cell=0), expected.transpose("uncertainty", "time"), rtol=1e-4)
    assert made["uncertainty"].values.tolist() == ["model", "scenario", "downscaling", "variability", "total"]


@pytest.mark.parametrize(
    ("chosen", "years", "why"),
    [
        ({"A 1": Part("A", "1"), "A 5": Part("A", "5")}, (1950, 2050), "scenarios 1, 5, and of models with all of"),
        (
            {"A1": Part("A", "1"), "A5": Part("A", "5"), "B1": Part("B", "1")},
            (1950, 2050),
            "models with all of them A;",
        ),
        ({f"{m}{s}": Part(m, s) for m in "AB" for s in "15"}, (1980, 2050), "the 71 years 1980-2050; expected"),
        ({f"{m}{s}": Part(m, s) for m in "AB" for s in "15"}, (1980, 1990), "the 11 years"),
    ],
)
def test_why_a_variance_cannot_be_partitioned_is_said(chosen, years, why):
    with pytest.raises(DataError, match=re.escape(why)):
        partitioned(series_of(chosen, years), chosen)


def test_blocks_of_few_cells_make_what_whole_maps_make(monkeypatch):
    values = np.random.default_rng(0).normal(0.2, 1, (7, 2, 11, 5)).astype("float32")
    values[2, 1] = np.nan
    coords = {"horizon": HORIZONS, "lat": np.arange(11.0), "lon": np.arange(5.0)}
    members = {
        f"m{i}": xr.Dataset({"t": (("horizon", "lat", "lon"), field, {"units": "K"})}, coords)
        for i, field in enumerate(values)
    }
    monkeypatch.setattr("espo_luigi.science.outcomes.ensemble._BLOCK_BYTES", 7 * 2 * 12 * 4)
    whole, lazy = join(members), join({label: ds.chunk(lat=6, lon=5) for label, ds in members.items()})
    there = present(lazy)
    xr.testing.assert_identical(there, present(whole))
    weights = weigh(there["t"], {label: (label in ("m0", "m1") and "A") or label for label in members})
    made = statistics(lazy, there, weights={"t": weights})
    assert len(made["t_p50"].chunksizes["lat"]) > 2
    xr.testing.assert_identical(made.compute(), statistics(whole, there, weights={"t": weights}))
    thresholds = xr.full_like(whole["t"], 0.5).chunk(lat=4)
    made = agreement(lazy["t"], there["t"], thresholds=thresholds)
    assert len(made["advanced"].chunksizes["lat"]) > 2
    xr.testing.assert_identical(made.compute(), agreement(whole["t"], there["t"], thresholds=thresholds.compute()))


def test_lazy_statistics_have_their_types_and_do_not_mix_with_others_of_the_same_data() -> None:
    values = xr.DataArray(np.float32([[1, 2], [3, 4]]), dims=(MEMBER, "cell"), name="t", attrs={"units": "d"})
    ens = values.chunk(cell=1).to_dataset()
    ens = ens.assign_coords({MEMBER: ["a", "b"]})
    there = present(ens)
    few, more = (statistics(ens, there, percentiles=chosen) for chosen in ([50], [10, 90]))
    assert few["t_p50"].dtype == few["t_p50"].compute().dtype == np.float32
    together = few.merge(more, compat="override").merge(agreement(ens["t"], there["t"])).compute()
    assert together["t_p10"].values.tolist() == pytest.approx([1.2, 2.2])


def test_too_few_members_have_a_mean_and_neither_percentiles_nor_agreement():
    values = np.random.default_rng(3).normal(2, 0.1, (5, 4))
    values[2:, 1], values[4:, 2] = np.nan, np.nan
    ens = xr.Dataset({"t": ((MEMBER, "lat"), values, {"units": "K"})}, {MEMBER: list("abcde")})
    there = xr.Dataset({"t": xr.DataArray([True] * 5, dims=MEMBER)})
    made = statistics(ens, there, fewest=1, fewest_of_percentiles=3)
    assert made["t_p10"].isnull().values.tolist() == [False, True, False, False]
    assert not made["t_mean"].isnull().any() and not made["t_max"].isnull().any()
    shares = agreement(ens["t"], there["t"], fewest=1, fewest_of_robustness=5)
    assert shares["agree"].isnull().values.tolist() == [False, True, True, False]
    assert shares["simple"].values.tolist() == [1, 99, 99, 1]
