"""The explorer's files: numbers of the stores, limits of size, names that are safe, and a page with its folder."""

import base64
import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import xarray as xr
from changes_example import BASELINE, LATS, LONS, MARKER, MODELS, REGIONS, write_changes_run, yearly
from explorer_files import read_file, unpacked
from small_demo import LAND

from espo_luigi import store
from espo_luigi.errors import StoreError
from espo_luigi.explorer import make
from espo_luigi.explorer.make import is_whole, what_fits, write_explorer
from espo_luigi.explorer.packing import as_script, packed
from espo_luigi.explorer.sources import REFERENCE, ExplorerView, Source
from espo_luigi.export.netcdf import from_cf_axes
from espo_luigi.science.outcomes.climatology import climatology
from espo_luigi.science.outcomes.delta import delta
from espo_luigi.science.stations import from_series

TX = "tx_mean_clim_mean_delta_1991_2010"
HOSTILE = "</script><b>\u2028\u202e\"'\\"


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> ExplorerView:
    """Two scenarios of three simulations, levels of warming, a reference, and cells that are not to be used."""
    folder = tmp_path_factory.mktemp("run")
    run = write_changes_run(folder)
    sources = []
    for of in run.ensembles:
        members = {}
        if of.product == "indicators":
            speed = {"ssp245": 0.02, "ssp585": 0.05}[of.experiment]
            for at, (label, slope) in enumerate(MODELS.items()):
                name = label.format(of.experiment)
                members[name] = folder / f"{name}.zarr"
                store.write_store(yearly(at, slope + speed), members[name], MARKER)
        table = of.regions if of.product == "indicators" else None
        sources.append(Source(of.experiment, of.product, of.freq, members, of.ensemble, table))
    sources += [Source(REFERENCE, "indicators", freq, {REFERENCE: path}) for freq, path in run.of_reference.items()]
    days = np.zeros((12, 10))
    days[2, 3], days[4, 5] = 100, 2
    coords = {"lat": LATS, "lon": LONS}
    flags = {
        "tasmax_days_sign_flipped": (("lat", "lon"), days, {"days": 100}),
        "tasmax_days_arid": (("lat", "lon"), days + 100, {"days": 100}),
    }
    store.write_store(xr.Dataset(flags, coords), folder / "flags.zarr", MARKER)
    return ExplorerView(HOSTILE, "NAM", "ERA5-Land", sources, REGIONS, [folder / "flags.zarr"])


@pytest.fixture(scope="module")
def page(view: ExplorerView, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "explore.html"
    write_explorer(view, out, MARKER)
    return out


def test_numbers_lose_less_than_a_step_and_what_is_missing_stays_so() -> None:
    values = np.array([[-3.5, np.nan, 1e6], [0.0, np.inf, 12.0]])
    back, step = unpacked(packed(values))
    np.testing.assert_allclose(back, np.where(np.isfinite(values), values, np.nan), atol=step)
    assert step < 8
    for same in (np.full(3, 280.25), np.full(3, np.nan), np.zeros(0)):
        np.testing.assert_array_equal(unpacked(packed(same))[0], same)


def test_changes_without_a_logarithm_have_limits() -> None:
    quotients = xr.DataArray([0.0, 0.0, np.nan], attrs={"delta_kind": "rel."})
    assert make._limits(quotients.values, quotients) == pytest.approx([1 / 1.1, 1.1])
    quotients[2] = 2
    assert make._limits(quotients.values, quotients) == pytest.approx([0.5, 2])


def test_no_text_ends_the_script_or_its_line() -> None:
    line = as_script("a", {HOSTILE: HOSTILE})
    assert line.isascii() and "<" not in line and line.count("\n") == 1
    assert json.loads(f"[{line[9:-3]}]") == ["a", {HOSTILE: HOSTILE}]
    with pytest.raises(ValueError, match="JSON"):
        as_script("a", float("nan"))


def test_the_index_tells_what_there_is(page: Path) -> None:
    index = read_file(page, "index")
    assert index["title"] == HOSTILE and index["flags"] is True
    assert index["grid"]["shape"] == [12, 10] and index["grid"]["lat_edges"][:2] == [45.0, 45.25]
    assert [(one["id"], one["levels"]) for one in index["scenarios"]] == [
        ("ssp245", False),
        ("ssp585", False),
        ("levels all", True),
    ]
    units = {one["id"]: (one["units"], one["change"]) for one in index["indicators"]}
    assert units["tx_mean.YS-JAN"] == ("°C", {"units": "K", "kind": "difference"})
    assert units["prcptot.YS-JAN"] == ("mm", {"units": "%", "kind": "per cent"})
    assert all(len(of) == 9 for one in index["indicators"] for of in one["colours"].values())
    (levels,) = [
        one for one in index["maps"] if (one["indicator"], one["scenario"]) == ("tx_mean.YS-JAN", "levels all")
    ]
    assert levels["along"] == ["+1 K", "+2 K", "+4 K"]
    limits = {(one["indicator"], tuple(one["limits"])) for one in index["maps"]}
    assert len(limits) == 2 and all(low == -high for _, (low, high) in limits)
    assert read_file(page, "lines")["coast"] and HOSTILE not in page.read_text()
    assert np.argwhere(bytes_of(page, "flags", "unusable").reshape(12, 10)).tolist() == [[2, 3]]


def bytes_of(page: Path, key: str, name: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(read_file(page, key)[name]), np.uint8)


def test_maps_are_those_of_the_stores(view: ExplorerView, page: Path) -> None:
    (of,) = [one for one in view.sources if (one.scenario, one.product) == ("ssp585", "delta")]
    ds = store.open_store(of.path).load().isel(horizon=slice(1, None))
    for indicator, base in (("tx_mean", TX), ("prcptot", TX.replace("tx_mean", "prcptot"))):
        (entry,) = [
            one
            for one in read_file(page, "index")["maps"]
            if (one["indicator"], one["scenario"]) == (f"{indicator}.YS-JAN", "ssp585")
        ]
        assert (entry["of"], entry["baseline"], entry["along"]) == ("change", BASELINE, ds["horizon"].values.tolist())
        values, step = unpacked(read_file(page, entry["key"])["values"])
        for at, statistic in enumerate(entry["statistics"]):
            np.testing.assert_allclose(values[:, 0, at], ds[f"{base}_{statistic}"], atol=step)
        codes = bytes_of(page, entry["key"], "robust").reshape(3, 12, 10)
        expected = ds[f"{base}_advanced"].where(ds[f"{base}_p50"].notnull(), 255)
        np.testing.assert_array_equal(codes, expected)
        with xr.open_dataset(page.parent / unquote(entry["file"])) as file:
            np.testing.assert_allclose(
                from_cf_axes(file.load())[f"{base}_p90"].isel(horizon=slice(1, None)), ds[f"{base}_p90"]
            )


def test_plumes_of_three_cells_and_of_regions_are_those_of_the_stores(view: ExplorerView, page: Path) -> None:
    found = read_file(page, "index")["plumes"]["tx_mean.YS-JAN"]
    of_regions = read_file(page, found["regions"])
    assert of_regions["cells"] == list(REGIONS) and found["stations"] is None
    reference = next(store.open_store(one.path) for one in view.sources if one.scenario == REFERENCE)["tx_mean"]
    for source in (one for one in view.sources if one.product == "indicators" and one.scenario != REFERENCE):
        ds, members = (
            store.open_store(source.path),
            {key: store.open_store(path) for key, path in source.members.items()},
        )
        for j, i in ((0, 0), (5, 4), (11, 7)):
            tile = read_file(
                page, f"{found['tiles']['key']}{j // found['tiles']['rows']}_{i // found['tiles']['columns']}"
            )
            of, place = tile["scenarios"][source.scenario], tile["cells"].index([j, i])
            assert (tile["years"], tile["parts"]) == ([*range(1991, 2041)], ["year"])
            for key, name in zip(("low", "median", "high"), tile["bounds"], strict=True):
                numbers, step = unpacked(of[key])
                np.testing.assert_allclose(numbers[place, 0], ds[f"tx_mean_{name}"][:, j, i] - 273.15, atol=step)
            numbers, step = unpacked(of["members"])
            for at, one in enumerate(members.values()):
                np.testing.assert_allclose(numbers[at, place, 0], one["tx_mean"][:, j, i] - 273.15, atol=step)
            numbers, step = unpacked(tile["reference"])
            np.testing.assert_allclose(numbers[place, 0, :30], reference[:, j, i] - 273.15, atol=step)
            assert np.isnan(numbers[place, 0, 30:]).all() and len(of["names"]) == 3
        of, file = of_regions["scenarios"][source.scenario], source.regions.with_suffix(".nc")
        with xr.open_dataset(file) as means:
            numbers, step = unpacked(of["high"])
            expected = means["tx_mean_p90"].transpose("region", "time") - 273.15
            np.testing.assert_allclose(numbers[:, 0], expected, atol=step)
            numbers, step = unpacked(of["members"])
            np.testing.assert_allclose(
                numbers[:, :, 0], means["tx_mean"].transpose("realization", "region", "time") - 273.15, atol=step
            )


def test_each_land_cell_is_in_one_tile_and_no_tile_is_too_large(
    view: ExplorerView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make, "MOST_TILE_BYTES", 40_000)
    monkeypatch.setattr(make, "_BLOCK_BYTES", 200_000)
    write_explorer(view, out := tmp_path / "explore.html")
    tiles = read_file(out, "index")["plumes"]["prcptot.YS-JAN"]["tiles"]
    files = sorted((tmp_path / "explore/data" / tiles["key"]).glob("*_*.js"))
    assert len(files) > 6 and max(path.stat().st_size for path in files) <= 40_000
    keys = {path: f"{tiles['key']}{path.stem}" for path in files}
    cells = [tuple(cell) for path in files for cell in read_file(out, keys[path])["cells"]]
    land = np.array([[letter == "#" for letter in row] for row in LAND])
    assert sorted(cells) == [tuple(cell) for cell in np.argwhere(land).tolist()]


def test_a_large_domain_has_coarse_maps_and_plumes_of_regions_and_stations_only(
    view: ExplorerView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make, "MOST_CELLS", 30)
    write_explorer(view, out := tmp_path / "explore.html")
    index = read_file(out, "index")
    assert index["grid"]["shape"] == [6, 5] and index["grid"]["lon_edges"] == [-67, -66.5, -66, -65.5, -65, -64.5]
    of = index["plumes"]["tx_mean.YS-JAN"]
    assert of["tiles"] is None and read_file(out, of["regions"])["cells"] == list(REGIONS)
    (entry,) = [one for one in index["maps"] if (one["indicator"], one["scenario"]) == ("tx_mean.YS-JAN", "ssp585")]
    values, step = unpacked(read_file(out, entry["key"])["values"])
    (source,) = [one for one in view.sources if (one.scenario, one.product) == ("ssp585", "delta")]
    fine = store.open_store(source.path)[f"{TX}_p50"].isel(horizon=slice(1, None)).load()
    np.testing.assert_allclose(values[:, 0, 1, 0, 0], fine[:, :2, :2].mean(["lat", "lon"]), atol=step)
    np.testing.assert_allclose(values[:, 0, 1, 0, 4], np.nan)
    assert bytes_of(out, "flags", "unusable").reshape(6, 5)[1, 1] == 1
    of_all = [source for source in view.sources if source.product == "indicators"]
    assert [what_fits(cells, [(150, of_all)] * 10) for cells in (2_000, 10_000, 50_000)] == [
        "members",
        "statistics",
        "",
    ]


def test_maps_of_ten_indicators_over_10_000_cells_are_under_5_megabytes() -> None:
    one = {"values": packed(np.random.default_rng(1).normal(size=(3, 1, 3, 100, 100))), "robust": "A" * 40_000}
    assert 10 * len(as_script("maps/0", one)) < 5e6


def test_a_simulation_by_itself_on_a_rotated_grid_by_season_shows_its_own_values(tmp_path: Path) -> None:
    ds = yearly(1, 0.05, "QS-DEC")
    rotated = ds.rename(lat="rlat", lon="rlon").assign_coords(rlat=ds["lat"].values - 46, rlon=ds["lon"].values + 66)
    lat, lon = np.meshgrid(ds["lat"], ds["lon"], indexing="ij")
    rotated = rotated.assign_coords(lat=(("rlat", "rlon"), lat), lon=(("rlat", "rlon"), lon + lat / 10))
    of_years = climatology(rotated, window=20, periods=[("1991", "2010"), ("2021", "2040")])
    stores = {"indicators": rotated, "climatology": of_years, "delta": delta(of_years, BASELINE)}
    for name, one in stores.items():
        store.write_store(one, tmp_path / f"{name}.zarr", MARKER)
    sources = [Source("ssp585", name, "QS-DEC", {"A": tmp_path / f"{name}.zarr"}) for name in stores]
    write_explorer(ExplorerView("One", "NAM", "", sources), out := tmp_path / "explore.html")
    index = read_file(out, "index")
    assert index["reference"] is None and index["flags"] is False
    corners, step = unpacked(index["grid"]["corner_lat"])
    assert corners.shape == (13, 11) and corners[0, 0] == pytest.approx(45, abs=0.01)
    maps = {(one["indicator"], one["of"]): one for one in index["maps"]}
    for of, (name, since) in {"value": ("tx_mean_clim_mean", 273.15), "change": (TX, 0)}.items():
        entry = maps["tx_mean.QS-DEC", of]
        assert (entry["statistics"], entry["members"]) == (["value"], 1)
        values, step = unpacked(read_file(out, entry["key"])["values"])
        expected = stores["climatology" if of == "value" else "delta"][name]
        expected = expected.sel(horizon=entry["along"], season=entry["parts"]).transpose("horizon", "season", ...)
        np.testing.assert_allclose(values[:, :, 0], expected - since, atol=step)
    tile = read_file(out, f"{index['plumes']['tx_mean.QS-DEC']['tiles']['key']}0_0")
    of = tile["scenarios"]["ssp585"]
    assert (tile["parts"], of["low"], of["members"], tile["reference"]) == (
        ["DJF", "MAM", "JJA", "SON"],
        None,
        None,
        None,
    )
    numbers, step = unpacked(of["median"])
    expected = rotated["tx_mean"].sel(time=rotated["time"].dt.month == 6)[:, 0, 0] - 273.15
    np.testing.assert_allclose(numbers[tile["cells"].index([0, 0]), 2, :50], expected, atol=step)


def test_stations_only_have_no_grid_and_their_own_numbers(tmp_path: Path) -> None:
    cells = yearly(1, 0.05, "QS-DEC").isel(
        lat=xr.DataArray([0, 11], dims="station"), lon=xr.DataArray([0, 7], dims="station")
    )
    of = {"station_id": np.array(["07", "9"], object), "station_name": np.array([HOSTILE, ""], object)}
    series = cells.assign_coords({name: ("station", ids) for name, ids in of.items()}).assign_coords(station=[0, 1])
    ds = from_series(series)
    of_years = climatology(ds, window=20, periods=[("1991", "2010"), ("2021", "2040")])
    stores = {"indicators": ds, "delta": delta(of_years, BASELINE)}
    for name, one in stores.items():
        store.write_store(one, tmp_path / f"{name}.zarr", MARKER)
    days = (
        xr.full_like(ds["tx_mean"].isel(time=0, drop=True), 0).rename("tasmax_days_sign_flipped").assign_attrs(days=100)
    )
    days[1] = 100
    store.write_store(days.to_dataset(), tmp_path / "flags.zarr", MARKER)
    sources = [Source("ssp585", name, "QS-DEC", {"A": tmp_path / f"{name}.zarr"}) for name in stores]
    view = ExplorerView("One", "NAM", "", sources, flags=[tmp_path / "flags.zarr"])
    write_explorer(view, out := tmp_path / "explore.html")
    index = read_file(out, "index")
    assert index["grid"] is None and index["regions"] == []
    assert index["stations"] == [
        {"id": "07", "name": HOSTILE, "lon": -66.875, "lat": 45.125},
        {"id": "9", "name": "9", "lon": -65.125, "lat": 47.875},
    ]
    assert bytes_of(out, "flags", "unusable").tolist() == [0, 1]
    (entry,) = [one for one in index["maps"] if one["indicator"] == "tx_mean.QS-DEC"]
    values, step = unpacked(read_file(out, entry["key"])["values"])
    expected = stores["delta"][TX].isel(point=0).sel(horizon=entry["along"], season=entry["parts"])
    assert values.shape == (1, 4, 1, 2)
    np.testing.assert_allclose(values[:, :, 0], expected.transpose("horizon", "season", "station"), atol=step)
    with xr.open_dataset(out.parent / unquote(entry["file"])) as file:
        assert file.attrs["featureType"] == "timeSeries" and file.sizes["station"] == 2
    found = index["plumes"]["tx_mean.QS-DEC"]
    plumes = read_file(out, found["stations"])
    assert (found["tiles"], found["regions"], plumes["cells"]) == (None, None, ["07", "9"])
    numbers, step = unpacked(plumes["scenarios"]["ssp585"]["median"])
    expected = series["tx_mean"].sel(time=series["time"].dt.month == 6) - 273.15
    np.testing.assert_allclose(numbers[:, 2, :50], expected.transpose("station", "time"), atol=step)


def test_page_and_folder_are_replaced_as_a_whole_and_others_files_stay(
    view: ExplorerView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, small = tmp_path / "explore.html", replace(view, sources=view.sources[:2])
    write_explorer(small, out, MARKER)
    first, folder = out.read_text(), out.with_suffix("")
    assert is_whole(out)
    # The process ends after the folder.
    other = replace(MARKER, config_hash="other")
    with monkeypatch.context() as patch:
        patch.setattr(make, "write_new", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            write_explorer(small, out, other)
    assert out.read_text() == first and not is_whole(out)
    write_explorer(small, out, other)
    assert is_whole(out) and sorted(path.name for path in tmp_path.iterdir()) == ["explore", "explore.html"]
    (folder / "data" / "mine.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"mine\.txt"):
        write_explorer(small, out, MARKER)
    assert is_whole(out) and (folder / "data" / "mine.txt").read_text() == "mine"
