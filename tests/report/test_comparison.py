"""Two productions compared: against numpy on the whole arrays, and on productions whose differences are planted."""

import functools
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from exported_products import SIM

from espo_luigi import store
from espo_luigi.commands import cli
from espo_luigi.errors import DataError, StoreError
from espo_luigi.methods import blocks
from espo_luigi.report import comparison
from espo_luigi.science.diagnose import differences

SEASONS = {"DJF": (12, 1, 2), "MAM": (3, 4, 5), "JJA": (6, 7, 8), "SON": (9, 10, 11)}
CHUNKS = {"time": 400, "lat": 4, "lon": 3}
Values = dict[str, np.ndarray]
# How both were adjusted, as products say it: without random draws, and with.
ADJUSTED = {
    "tasmax": "DetrendedQuantileMapping(group=Grouper('time.dayofyear'), kind='+', adapt_freq_thresh=None).adjust(sim)",
    "pr": "DetrendedQuantileMapping(group=Grouper('time.dayofyear'), kind='*', adapt_freq_thresh=None).adjust(sim), "
    "ref and hist were prepared with jitter_under_thresh(ref, hist, {'thresh': '0.01 mm d-1'})",
}


def climate(days: int = 3 * 365) -> Values:
    """Values of 7 x 9 cells, of which four are sea."""
    random = np.random.default_rng(1)
    made = {
        "tasmax": random.normal(285, 8, (days, 7, 9)),
        "pr": np.where(random.random((days, 7, 9)) < 0.4, random.gamma(0.7, 5, (days, 7, 9)), 0.0),
    }
    for values in made.values():
        values[:, 0, :4] = np.nan
    return {name: values.astype("float32") for name, values in made.items()}


def dataset(values: Values, calendar: str = "noleap", first: str = "2001-01-01", **attrs: str) -> xr.Dataset:
    days = len(next(iter(values.values())))
    time = xr.date_range(first, periods=days, calendar=calendar, use_cftime=True)
    coords = {
        "time": time,
        "lat": ("lat", np.linspace(48, 45, 7), {"units": "degrees_north"}),
        "lon": ("lon", np.linspace(-75, -71, 9), {"units": "degrees_east"}),
    }
    units = {"tasmax": "K", "pr": "mm d-1"}
    said = {name: {"units": units[name], "bias_adjustment": ADJUSTED[name]} for name in values}
    both = {name: (("time", "lat", "lon"), of, said[name]) for name, of in values.items()}
    about = {"cat:id": SIM, "cat:domain": "NAM", "cat:processing_level": "final", "cat:xrfreq": "D"}
    return xr.Dataset(both, coords, about | attrs)


def publish(folder: Path, ds: xr.Dataset, name: str = "day", chunks: dict[str, int] = CHUNKS, **kept: Any) -> Path:
    """Publish an archive in a folder of products; return the folder."""
    marker = store.Marker("ConcatenationFinal", {"sim_id": SIM}, created="2026-01-01T00:00:00+00:00", **kept)
    store.write_store(
        ds.chunk({dim: size for dim, size in chunks.items() if dim in ds.dims}),
        folder / "made" / f"{name}.zarr",
        marker,
    )
    store.pack(folder / "made" / f"{name}.zarr", folder / f"{name}.zarr.zip", marker)
    store.remove(folder / "made" / f"{name}.zarr")
    return folder


def compared(a: Path, b: Path) -> tuple[comparison.Comparison, dict[str, xr.Dataset]]:
    return comparison.compare(a, b, lambda text: None)


def of(found: comparison.Comparison, variable: str) -> dict[str, differences.Difference]:
    (rows,) = (rows for name, rows in found.differences.items() if name.endswith(f" {variable}"))
    return {row.season: row for row in rows}


def changed(change: Callable[[Values], None]) -> Values:
    values = {name: of.copy() for name, of in climate().items()}
    change(values)
    return values


def test_equal_runs_are_equal_in_any_chunks_and_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = publish(tmp_path / "a", dataset(climate()).transpose("lat", "lon", "time"))
    b = publish(tmp_path / "b", dataset(climate()), "other-name", {"time": 365, "lat": 7, "lon": 2})
    out = tmp_path / "page.html"
    assert cli.main(["compare", str(a), str(b), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"equal: 2 variables\n{out}\n"
    assert "Two productions: equal" in out.read_text()
    archives = [str(next(folder.glob("*.zip"))) for folder in (a, b)]
    assert cli.main(["compare", *archives, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["differences"]["pr"][0] == {
        "season": "year", "days": 3 * 365 * 59, "missing": 0, "share": 0.0, "largest": 0.0, "q999": 0.0, "mean": 0.0,
        "beyond_noise": False,
    }  # fmt: skip


def test_the_numbers_of_each_season_and_cell_are_numpys(tmp_path: Path) -> None:
    random = np.random.default_rng(2)

    def change(values: Values) -> None:
        hit = random.random(values["tasmax"].shape) < 0.3
        values["tasmax"] += np.where(hit, random.normal(0.1, 1, hit.shape), 0).astype("float32")
        values["tasmax"][100:110, 3, 3] = np.nan

    ours, theirs = climate(), changed(change)
    a = publish(tmp_path / "a", dataset(ours))
    b = publish(tmp_path / "b", dataset(theirs), chunks={"time": 150, "lat": 5, "lon": 9})
    found, maps = compared(a, b)
    months = dataset(ours)["time"].dt.month.values
    x, y = ours["tasmax"].astype(float), theirs["tasmax"].astype(float)
    for season, known in {"year": range(1, 13), **SEASONS}.items():
        row, differences = of(found, "tasmax")[season], (y - x)[np.isin(months, known)]
        valid = differences[~np.isnan(differences)]
        assert row.days == valid.size
        assert row.missing == (10 if season in ("year", "MAM") else 0)
        assert row.largest == np.abs(valid).max()
        assert row.beyond_noise or not row.missing
        np.testing.assert_allclose([row.share, row.mean], [(valid != 0).mean(), valid.mean()], rtol=1e-12)
        np.testing.assert_allclose(row.q999, np.quantile(np.abs(valid), 0.999, method="inverted_cdf"), rtol=1 / 2048)
    (fields,) = maps.values()
    sea = np.isnan(x).all(axis=0)
    oracle = {
        "share": np.nanmean(np.where(np.isnan(y - x), np.nan, y != x)[:, ~sea], axis=0),
        "largest": np.nanmax(np.abs(y - x)[:, ~sea], axis=0),
        "mean": np.nanmean((y - x)[:, ~sea], axis=0),
    }
    for name, expected in oracle.items():
        np.testing.assert_allclose(fields[name].values[~sea], expected, rtol=1e-12)
        assert np.isnan(fields[name].values[sea]).all()


@functools.cache
def noisy_pr(seed: str, method: str = "DetrendedQuantileMapping") -> np.ndarray:
    """Precipitation adjusted by our kernels, whose draws have a seed."""
    days = 6 * 365
    time = xr.date_range("2001-01-01", periods=days, calendar="noleap", use_cftime=True)
    random = np.random.default_rng(3)
    reference, simulation = (
        xr.DataArray(
            np.where(random.random((days, 63)) < wet, random.gamma(0.7, 5, (days, 63)), 0.0).astype("float32"),
            dims=("time", "loc"), coords={"time": time}, attrs={"units": "mm d-1"}, name="pr",
        )
        for wet in (0.5, 0.3)
    )  # fmt: skip
    how: dict[str, Any] = {
        "group": {"group": "time.dayofyear", "window": 31},
        "jitter_under": {"thresh": "0.01 mm d-1"}, "adapt_freq": {"thresh": "1 mm d-1"},
        "xclim_train_args": {"kind": "*", "nquantiles": 20},
    }  # fmt: skip
    period = ["2001", "2006"]
    trained = blocks.train(reference, simulation, period=period, method=method, **how, seed=seed)
    adjusting: dict[str, Any] = {"interp": "nearest", "extrapolation": "constant"}
    adjusting |= (
        {"detrend": {"LoessDetrend": {"f": 0.5, "niter": 1, "d": 0, "weights": "tricube"}}}
        if method == "DetrendedQuantileMapping"
        else {}
    )
    made = blocks.adjust(simulation, trained, periods=period, xclim_adjust_args=adjusting, seed=seed)
    return made.transpose("time", "loc").values.reshape(days, 7, 9)


def test_another_seed_is_noise_and_another_mean_is_more(tmp_path: Path) -> None:
    ours, theirs = ({"pr": noisy_pr(seed).copy()} for seed in "ab")
    a, b = (publish(tmp_path / name, dataset(of)) for name, of in (("a", ours), ("b", theirs)))
    c = publish(tmp_path / "c", dataset({"pr": theirs["pr"] * np.float32(1.1)}))
    theirs["pr"][:, 3, 3] += np.float32(5)
    d = publish(tmp_path / "d", dataset(theirs))
    noise, more, one_cell = (of(compared(a, other)[0], "pr") for other in (b, c, d))
    assert noise["year"].share > 0.1
    assert noise["year"].largest > 1
    assert [row.beyond_noise for row in noise.values()] == [False] * 5
    assert more["year"].beyond_noise
    assert one_cell["year"].beyond_noise


def told(a: np.ndarray, b: np.ndarray, draws: bool | None = True) -> list[bool | None]:
    """Whether differences are beyond noise, of the year and of seasons."""
    first, second = (dataset({"pr": values})["pr"] for values in (a, b))
    return [row.beyond_noise for row in differences.compare(first, second, draws)[0]]


CELLS = np.arange(63).reshape(7, 9)
BY_COLUMN = np.where(np.arange(9) % 2, 1, -1)


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values + 2 * BY_COLUMN,
        lambda values: values * (1 + 0.3 * BY_COLUMN),
        lambda values: values[np.random.default_rng(5).permutation(len(values))],
        lambda values: noisy_pr("b", "QuantileDeltaMapping"),
        lambda values: values + 5 * (((np.arange(len(values)) - 1611) // 92 == 0)[:, None, None] & (CELLS == 30)),
    ],
    ids=["shifts of mixed sign", "factors of mixed sign", "permuted days", "another method", "a summer in a cell"],
)
def test_systematic_differences_among_other_draws_are_more_than_noise(
    change: Callable[[np.ndarray], np.ndarray],
) -> None:
    assert True in told(noisy_pr("a"), change(noisy_pr("b")).astype("float32"))


def test_another_seed_of_mbcn_is_noise() -> None:
    time = xr.date_range("2001-01-01", periods=4 * 365, calendar="noleap", use_cftime=True)
    random = np.random.default_rng(4)

    def series(warmer: float, wet: float) -> xr.Dataset:
        one, two = random.standard_normal((2, time.size, 12)).astype("float32")
        values = {"pr": np.maximum(one + wet, 0) * 4, "tasmax": 280 + warmer + 5 * two - 3 * one}
        units = {"pr": "mm d-1", "tasmax": "K"}
        return xr.Dataset({name: (("time", "loc"), of, {"units": units[name]}) for name, of in values.items()},
                          {"time": time, "loc": np.arange(12)})  # fmt: skip

    reference, simulation, years = series(0, 0), series(2, -0.5), ["2001", "2004"]
    by_variable = {"pr": {"kind": "*", "jitter_under": {"thresh": "0.01 mm d-1"}, "adapt_freq_thresh": "1 mm d-1"}}
    training = {"period": years, "by_variable": by_variable, "group": "time", "n_iter": 3, "nquantiles": 20}
    how: dict[str, Any] = {"method": "MBCn", "reference": reference, "periods": years, "first_cell": 0}
    a, b = (blocks.adjust_and_count(simulation, training_args=training, seed=seed, **how).load() for seed in "ab")
    for name in ("pr", "tasmax"):
        assert comparison._have_draws(a[name], b[name])
        both = [one[name].transpose("time", "loc") for one in (a, b)]
        rows, *_ = differences.compare(both[0], both[1])
        assert rows[0].share > 0.3
        assert [row.beyond_noise for row in rows] == [False] * 5
        both[1] = both[1] + np.where(np.arange(12) % 2, 2, -2).astype("float32")
        assert differences.compare(both[0], both[1])[0][0].beyond_noise


def test_properties_of_rain_have_its_units(tmp_path: Path) -> None:
    both = [dataset({"pr": climate()["pr"] + more}).rename(pr="q99_pr") for more in (0, np.float32(1))]
    paths = [tmp_path / name for name in "ab"]
    for path, ds in zip(paths, both, strict=True):
        flux = (ds["q99_pr"] / 86400).assign_attrs(units="kg m-2 s-1")
        publish(path, ds.assign(q99_pr=flux))
    found, _ = compared(*paths)
    assert set(found.units.values()) == {"mm/d"}
    assert of(found, "q99_pr")["year"].mean == pytest.approx(1, rel=1e-3)


def test_each_difference_of_values_without_draws_is_more_than_noise(tmp_path: Path) -> None:
    def alternate(values: Values) -> None:
        values["tasmax"] += np.float32(2) * BY_COLUMN.astype("float32")

    def permute(values: Values) -> None:
        values["tasmax"] = values["tasmax"][::-1]

    def touch(values: Values) -> None:
        values["tasmax"][200, 4, 6] += np.float32(0.01)

    a = publish(tmp_path / "a", dataset(climate()))
    for change in (alternate, permute, touch):
        found, _ = compared(a, publish(tmp_path / change.__name__, dataset(changed(change))))
        rows = of(found, "tasmax").values()
        assert [row.beyond_noise for row in rows] == [row.share > 0 for row in rows]
        assert not any(row.beyond_noise for row in of(found, "pr").values())
    values = climate()["pr"]
    assert told(values, values + np.float32(1), None) == [None] * 5


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (ADJUSTED["tasmax"], False),
        (ADJUSTED["pr"], True),
        (ADJUSTED["tasmax"].replace("None", "'1 mm d-1'"), True),
        ("MBCn(period=('1979', '2014'))", True),
        ("ibicus.CDFt(x=1): CDFt.from_variable('pr')", True),
        (f"not adjusted itself: tasmax - dtr, each of which is adjusted; tasmax: {ADJUSTED['tasmax']}", False),
        (f"not adjusted itself: tasmax - dtr; tasmax: {ADJUSTED['tasmax']}; dtr: {ADJUSTED['pr']}", True),
        ("not adjusted itself: of (x), which is adjusted; tas: MBCn(period=('1979', '2014'))", True),
    ],
)
def test_an_adjustment_with_random_draws_is_known_by_the_products_attribute(said: str, expected: bool) -> None:
    days = dataset(climate(400))["pr"].assign_attrs(bias_adjustment=said)
    assert comparison._have_draws(days, days) is expected
    assert comparison._have_draws(days, days.assign_attrs(bias_adjustment="another")) is False
    assert comparison._have_draws(days, days.drop_attrs()) is None
    assert comparison._have_draws(days[::90], days[::90]) is None
    assert comparison._have_draws(days.isel(time=0), days.isel(time=0)) is None


def test_a_planted_month_is_named_by_season_and_place(tmp_path: Path) -> None:
    def plant(values: Values) -> None:
        values["pr"][365 + 181 : 365 + 212, 4, 6] += np.float32(2.5)  # July of the second year

    a, b = (publish(tmp_path / name, dataset(of)) for name, of in (("a", climate()), ("b", changed(plant))))
    found, maps = compared(a, b)
    rows = of(found, "pr")
    assert [season for season, row in rows.items() if row.share] == ["year", "JJA"]
    assert rows["JJA"].beyond_noise
    assert not rows["DJF"].beyond_noise
    planted = climate()["pr"][365 + 181 : 365 + 212, 4, 6]
    assert rows["JJA"].largest == np.abs((planted + np.float32(2.5)).astype(float) - planted).max()
    (fields,) = maps.values()
    assert fields["largest"].argmax(...) == {"lat": 4, "lon": 6}
    assert int((fields["share"] > 0).sum()) == 1
    assert not any(row.share for row in of(found, "tasmax").values())


def test_keys_and_packages_that_differ_are_named_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def warm(values: Values) -> None:
        values["tasmax"] += np.float32(0.5)

    key = "biasadjust.variables.tasmax.method"
    a = publish(tmp_path / "a", dataset(climate()), versions={"numpy": "2.4", "zarr": "3"}, fingerprints={key: "1"})
    kept: Any = {"versions": {"numpy": "2.5", "zarr": "3"}, "fingerprints": {key: "2", "domain.name": "3"}}
    b = publish(tmp_path / "b", dataset(changed(warm)), **kept)
    page = tmp_path / "page.html"
    assert cli.main(["compare", str(a), str(b), "--out", str(page), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["keys"], found["versions"]) == ([key, "domain.name"], [["numpy", "2.4", "2.5"]])
    assert [row["beyond_noise"] for row in found["differences"][f"{SIM} NAM final tasmax"]] == [True] * 5
    text = page.read_text()
    assert text.count(f"{SIM} NAM final tasmax [") == 5  # a row each of the year and seasons, and no other
    assert "Two productions: different" in text
    assert key in text
    assert "numpy: 2.4 and 2.5" in text
    assert text.count("<img") == 1


def test_what_is_not_in_both_is_named_and_the_rest_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = climate()
    a = publish(publish(tmp_path / "a", dataset(values)), dataset({"pr": values["pr"]}, **{"cat:id": "alone"}), "x")
    later = dataset({name: of[365:] for name, of in values.items()}, first="2002-01-01").isel(lat=slice(1, None))
    b = publish(tmp_path / "b", later.isel(lon=slice(None, None, -1)))
    found, _ = compared(a, b)
    assert found.only_in_a == ["alone NAM final pr"]
    assert found.notes[f"{SIM} NAM final pr"] == ["time: 365 of 1095 only in A", "lat: 1 of 7 only in A"]
    assert of(found, "pr")["year"].days == 2 * 365 * 54
    assert not of(found, "pr")["year"].share
    assert not found.is_equal
    assert cli.main(["compare", str(a), str(b), "--out", str(tmp_path / "page.html")]) == 1
    assert "only in A: alone NAM final pr" in capsys.readouterr().out


def test_a_page_of_others_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    page.write_text("of others")
    assert cli.main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(page)]) == 1
    assert f"{page}" in capsys.readouterr().err
    assert page.read_text() == "of others"


def test_cells_of_stacked_grids_are_compared_by_place(tmp_path: Path) -> None:
    reference = dataset(climate()).stack(loc=("lat", "lon")).reset_index("loc").drop_encoding()
    reference["pr"][10, 40] += np.float32(1)
    a = publish(tmp_path / "a", reference, chunks={"time": 400, "loc": 20})
    b = publish(tmp_path / "b", dataset(climate()).stack(loc=("lat", "lon")).reset_index("loc").isel(loc=[40, 7, 9]))
    found, maps = compared(a, b)
    assert found.notes[f"{SIM} NAM final pr"] == ["loc: 60 of 63 only in A"]
    row = of(found, "pr")["year"]
    assert (row.days, row.largest, round(row.share * row.days)) == (3 * 3 * 365, 1, 1)
    comparison.write_page(found, maps, tmp_path / "page.html", a, b)  # has no map
    assert "<img" not in (tmp_path / "page.html").read_text()


def test_calendars_are_compared_by_date() -> None:
    values = climate(4 * 365)
    noleap = dataset(values)["tasmax"]
    standard = dataset({"tasmax": np.insert(values["tasmax"], 3 * 365 + 59, 0, axis=0)}, "standard")["tasmax"]
    rows, _, said = differences.compare(noleap, standard)
    assert (rows[0].days, rows[0].share) == (4 * 365 * 59, 0)
    assert said == ["calendars noleap and standard, compared by date", "time: 1 of 1461 only in B"]


def test_what_cannot_be_compared_is_refused_by_name(tmp_path: Path) -> None:
    ours = dataset(climate())
    other_units = ours.assign(tasmax=ours["tasmax"].assign_attrs(units="degC"))
    a, b = publish(tmp_path / "a", ours), publish(tmp_path / "b", other_units)
    found, _ = compared(a, b)
    ((name, (reason,)),) = found.notes.items()
    assert name == f"{SIM} NAM final tasmax"
    assert "in K and ('time', 'lat', 'lon') in degC; expected the same" in reason
    assert not found.is_equal
    with pytest.raises(DataError, match=r"got .*'lat', 'lon'.* in mm d-1 and .*'rlat'"):
        differences.compare(ours["pr"], ours["pr"].rename(lat="rlat", lon="rlon"))
    with pytest.raises(DataError, match="no time in common"):
        differences.compare(ours["pr"], dataset(climate(), first="2050-01-01")["pr"])
    with pytest.raises(StoreError, match="has no product"):
        compared(a, tmp_path / "nothing")
    found, _ = compared(a, publish(tmp_path / "c", dataset(climate(), **{"cat:id": "other"})))
    assert found.only_in_b == ["other NAM final pr", "other NAM final tasmax"]
    assert not found.is_equal
    publish(a, ours, "twice")
    found, _ = compared(a, publish(b, ours, "once"))
    places = {f"{name} {variable}" for name in ("day.zarr.zip", "twice.zarr.zip") for variable in ours}
    assert {*found.only_in_a, *found.differences, *found.notes} == places
    assert found.only_in_b == ["once.zarr.zip pr", "once.zarr.zip tasmax"]


def test_flags_of_cells_are_compared_too(tmp_path: Path) -> None:
    days = xr.zeros_like(dataset(climate())["pr"], np.uint16).drop_attrs().rename("pr_flags")
    flags = days.to_dataset().assign(pr_cell_flags=days.isel(time=0, drop=True).astype("uint8"))
    flags.attrs = dataset(climate()).attrs
    other = flags.assign(pr_cell_flags=flags["pr_cell_flags"].where(flags["lat"] < 48, 1))
    found, _ = compared(publish(tmp_path / "a", flags), publish(tmp_path / "b", other))
    (row,) = of(found, "pr_cell_flags").values()
    assert (row.season, row.days, row.share, row.beyond_noise) == ("year", 63, 1 / 7, None)
    assert not found.is_equal


def test_a_damaged_chunk_is_named_and_the_rest_compared(tmp_path: Path) -> None:
    a, b = (publish(tmp_path / name, dataset(climate())) for name in "ab")
    archive = b / "day.zarr.zip"
    with zipfile.ZipFile(archive) as members:
        chunk = next(member for member in members.infolist() if member.filename == "pr/c/0/0/0")
    content = bytearray(archive.read_bytes())
    middle = chunk.header_offset + 30 + len(chunk.filename) + chunk.file_size // 2
    content[middle : middle + 40] = bytes(40)
    archive.write_bytes(content)
    found, _ = compared(a, b)
    assert list(found.notes) == [f"{SIM} NAM final pr"]
    assert found.notes[f"{SIM} NAM final pr"][0].startswith("not compared: ")
    assert list(found.differences) == [f"{SIM} NAM final tasmax"]


def test_a_truncated_archive_is_no_missing_product(tmp_path: Path) -> None:
    a, b = (publish(tmp_path / name, dataset(climate())) for name in "ab")
    publish(b, dataset(climate(400), **{"cat:id": "other"}), "other")
    archive = b / "day.zarr.zip"
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(StoreError, match=r"b/day\.zarr\.zip is truncated"):
        compared(a, b)


def test_exported_files_are_refused_with_what_to_compare_instead(tmp_path: Path) -> None:
    folder = tmp_path / "nc"
    folder.mkdir()
    dataset(climate(400)).to_netcdf(folder / "pr_day.nc")
    with pytest.raises(StoreError, match=r"nc has no product: expected .*; not the files that `espo export` has made"):
        compared(folder, folder)


def test_each_pair_of_versions_is_named(tmp_path: Path) -> None:
    small, other = dataset(climate(400)), {"cat:id": "other"}
    a = publish(tmp_path / "a", small, versions={"numpy": "2.4"})
    publish(a, small.assign_attrs(other), "other", versions={"numpy": "2.3"})
    b = publish(tmp_path / "b", small, versions={"numpy": "2.5", "numba": "1"})
    publish(b, small.assign_attrs(other), "other", versions={"numpy": "2.5"})
    assert compared(a, b)[0].versions == [("numba", "–", "1"), ("numpy", "2.3", "2.5"), ("numpy", "2.4", "2.5")]


def test_only_the_maps_of_the_page_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = climate(400)
    a = publish(tmp_path / "a", dataset(ours))
    b = publish(tmp_path / "b", dataset({name: values + np.float32(1) for name, values in ours.items()}))
    monkeypatch.setattr(comparison, "MOST_MAPS", 1)
    found, maps = compared(a, b)
    assert (len(found.different), len(maps)) == (2, 1)
    comparison.write_page(found, maps, page := tmp_path / "page.html", a, b)
    assert "Maps of 1 of 2 variables that differ." in page.read_text()


def test_text_of_others_is_no_html(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    folders = []
    for number, name in enumerate(("--><b>a", "b")):
        values = {"pr": climate(400)["pr"] + np.float32(number)}
        ds = dataset(values, **{"cat:id": f"{evil}{SIM}"})
        ds["pr"].attrs["units"] = f"mm {evil}"
        kept: Any = {"fingerprints": {evil: name}, "versions": {evil: f"{number}{evil}"}}
        folders.append(
            publish(publish(tmp_path / name, ds, **kept), ds.assign_attrs({"cat:id": f"{number}{evil}"}), "x")
        )
    found, maps = compared(*folders)
    comparison.write_page(found, maps, page := tmp_path / "page.html", *folders)
    text = page.read_text()
    assert (found.keys, len(found.only_in_a)) == ([evil], 1)
    assert text.count("&lt;script&gt;alert(1)") > 8
    assert "<script" not in text
    assert "<b>" not in text
    assert text.count("-->") == 1


def test_an_archive_and_a_folder_are_not_compared(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="expected two folders of finished products, or two archives"):
        comparison.compare(tmp_path / "final", tmp_path / "day.zarr.zip", lambda line: None)
