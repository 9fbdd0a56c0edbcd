"""The page "What changes": the stores' numbers in maps and downloads, hatching, and what is missing."""

import html
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from browser import Browser, missing_browser
from changes_example import BASELINE, MARKER, REGIONS, write_changes_run
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from matplotlib.path import Path as Path2D

from espo_luigi import store
from espo_luigi.errors import StoreError
from espo_luigi.export.netcdf import from_cf_axes
from espo_luigi.report import changes
from espo_luigi.report.drawings import Drawing
from espo_luigi.report.html import Link, Picture, Table, Text, Warned
from espo_luigi.report.make import write_report
from espo_luigi.report.reading import RunView, Together
from espo_luigi.science.outcomes import ensemble

TX = "tx_mean_clim_mean_delta_1991_2010"


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return write_changes_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def written(view: RunView, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "report.html"
    write_report(view, out)
    return out


def words(page: Path) -> str:
    without = re.sub(r"<style>.*?</style>", "", page.read_text(), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", without)).split())


def store_of(view: RunView, product: str, experiment: str) -> xr.Dataset:
    (one,) = [one for one in view.ensembles if (one.product, one.experiment) == (product, experiment)]
    return store.open_store(one.ensemble).load()


def test_the_numbers_beside_the_page_are_the_stores(written: Path, view: RunView) -> None:
    page = (written.parent / "report-changes" / "index.html").read_text()
    links = [html.unescape(name) for name in re.findall(r'<a href="([^"#]+)"', page)]
    assert sorted(links) == sorted(path.name.replace("+", "%2B") for path in written.parent.glob("report-changes/*.nc"))
    for product, experiment, dim in (("delta", "ssp585", "horizon"), ("warming_levels", "all", "warming_level")):
        expected = store_of(view, product, experiment)
        with xr.open_dataset(written.parent / "report-changes" / f"tx_mean+YS-JAN+{product}+{experiment}.nc") as file:
            ds = from_cf_axes(file.load()).drop_vars("crs")
            more = ("agree", "members", "simple", "advanced", "min", "mean", "max")
            names = {f"{TX}_{end}" for end in ("p10", "p50", "p90", *more)}
            assert set(ds.data_vars) == names
            xr.testing.assert_allclose(ds, expected[list(names)].sel({dim: ds[dim].values}))
            assert ds[f"{TX}_p50"].attrs["delta_reference"] == BASELINE and ds.attrs["Conventions"] == "CF-1.11"


@pytest.mark.skipif(shutil.which("cdo") is None, reason="needs CDO: apt-get install cdo")
def test_cdo_reads_the_numbers_beside_the_page(written: Path) -> None:
    for path in written.parent.glob("report-changes/tx_mean*.nc"):
        done = subprocess.run(["cdo", "-s", "showname", path], capture_output=True, text=True, check=True)
        assert {f"{TX}_{end}" for end in ("p10", "p50", "p90", "agree")} <= {*done.stdout.split()} and not done.stderr


def test_the_page_says_what_changes_since_when_and_who_is_missing(written: Path, view: RunView) -> None:
    text = words(written.parent / "report-changes" / "index.html")
    assert "Absolute changes: differences from the mean of 1991-2010, in K." in text
    assert "Relative changes: in per cent of the mean of 1991-2010." in text
    assert "delta, ssp585: it has no day of 2041; others have: CMIP6_X_lost_ssp585" in text
    assert "no value at 5.0: Model-A ssp245" in text
    assert "no value at 4.0, 5.0: Model-C ssp245 r1i1p1f1, Model-A ssp585 r1i1p1f1" in text
    assert "No simulation has a value at +5 K." in text
    assert "report-changes/index.html" in written.read_text()


def test_the_tables_have_the_regions_numbers(view: RunView) -> None:
    sections, _ = changes.changes_sections(view)
    (table,) = [block for block in sections[1].blocks if isinstance(block, Table)]
    (one,) = [one for one in view.ensembles if (one.product, one.experiment) == ("delta", "ssp585")]
    with xr.open_dataset(one.regions.with_suffix(".nc")) as ds:
        for region in REGIONS:
            at = ds.sel(region=region, horizon="2021-2040")
            (row,) = [row for row in table.rows if row[:3] == [region, "ssp585", "2021-2040"]]
            assert row[3:6] == [f"{float(at[f'{TX}_{end}']):.3g}" for end in ("p10", "p50", "p90")]
            assert row[6:] == ["100%", "3"]
    assert BASELINE not in {row[2] for row in table.rows}


def test_numbers_have_three_digits_and_no_exponent() -> None:
    assert [changes._number(value) for value in (999.7, -999.7, 999.4, 12345.6)] == ["1,000", "−1,000", "999", "12,346"]


def hatched(figure: Figure, at: int, row: int) -> np.ndarray:
    """Of the middle map in a row, the cells whose centre a kind of hatching covers, (lat, lon)."""
    axes = figure.axes[3 * row + 1]
    (contours,) = [one for one in axes.collections if isinstance(one, QuadContourSet)]
    path = contours.get_paths()[at]
    lats, lons = 45.125 + 0.25 * np.arange(12), -66.875 + 0.25 * np.arange(10)
    centres = np.array([(lon, lat) for lat in lats for lon in lons])
    # A polygon inside of another is a hole.
    inside = [Path2D(polygon).contains_points(centres) for polygon in path.to_polygons()]
    return np.logical_xor.reduce([np.zeros(120, bool), *inside]).reshape(12, 10)


def test_hatching_covers_the_cells_without_agreement_and_no_others(view: RunView) -> None:
    ds = store_of(view, "delta", "ssp585").sel(horizon=["2021-2040"])
    wet = "prcptot_clim_mean_delta_1991_2010"
    unclear = ds[f"{wet}_simple"].isel(horizon=0).values == 2
    assert 0 < unclear.sum() < 100
    names = [f"{wet}_p10", f"{wet}_p50", f"{wet}_p90"]
    figure = changes.change_maps(ds.drop_vars(f"{wet}_advanced"), names)
    np.testing.assert_array_equal(hatched(figure, 0, 0), unclear)
    assert not any(isinstance(one, QuadContourSet) for at in (0, 2) for one in figure.axes[at].collections)
    # Of the advanced approach: no robust signal, and conflicting signals.
    kinds = xr.zeros_like(ds[f"{TX}_advanced"]) + 1
    kinds[0, 2:4, 3:5], kinds[0, 8, 1] = 2, 3
    marked = ds.assign({f"{TX}_advanced": kinds})
    figure = changes.change_maps(marked, [f"{TX}_p10", f"{TX}_p50", f"{TX}_p90"])
    np.testing.assert_array_equal(hatched(figure, 0, 0), kinds[0] == 2)
    np.testing.assert_array_equal(hatched(figure, 1, 0), kinds[0] == 3)
    agreed = ds.assign({f"{TX}_advanced": xr.zeros_like(kinds) + 1})
    figure = changes.change_maps(agreed, [f"{TX}_p10", f"{TX}_p50", f"{TX}_p90"])
    assert not any(isinstance(one, QuadContourSet) for axes in figure.axes for one in axes.collections)


def test_means_over_the_domain_are_weighted_by_areas(view: RunView) -> None:
    ds = store_of(view, "delta", "ssp585")[[f"{TX}_p50", f"{TX}_members"]].rename(
        {f"{TX}_p50": "median", f"{TX}_members": "members"}
    )
    found = changes.domain_means(ds)
    weights = np.cos(np.deg2rad(ds["lat"]))
    xr.testing.assert_allclose(
        found["median"].isel(region=0, drop=True), ds["median"].weighted(weights).mean(("lat", "lon")), rtol=1e-6
    )
    assert set(found["members"].values.ravel()) == {3}


def test_a_rotated_grid_is_drawn_and_averaged_as_well(view: RunView) -> None:
    ds = store_of(view, "delta", "ssp585").sel(horizon=["2021-2040"])
    names = [f"{TX}_p10", f"{TX}_p50", f"{TX}_p90"]
    lat, lon = xr.broadcast(ds["lat"], ds["lon"])
    turned = ds.rename(lat="rlat", lon="rlon")
    for name, field in (("lat", lat), ("lon", lon)):
        turned.coords[name] = field.rename(lat="rlat", lon="rlon").drop_vars(["rlat", "rlon"])
    turned["rlat"].attrs, turned["rlon"].attrs = {"units": "degrees"}, {"units": "degrees"}
    found, expected = (changes.domain_means(one[names]) for one in (turned, ds))
    xr.testing.assert_allclose(found, expected, rtol=1e-3)
    assert changes.change_maps(turned, names).axes[0].get_xlim() == pytest.approx((-67, -64.5))


def test_of_seasons_one_horizon_is_drawn_and_of_horizons_those_that_do_not_overlap() -> None:
    horizons = ["1991-2010", "2001-2020", "2011-2030", "2021-2040"]
    yearly = xr.DataArray([5, 5, 5, 5], {"horizon": horizons}, dims="horizon")
    assert changes.selection(yearly, BASELINE) == {"horizon": ["2001-2020", "2021-2040"]}
    levels = xr.DataArray(
        [[5, 5], [5, 5], [4, 4], [0, 0]],
        {"warming_level": [1.0, 2, 3, 4], "season": ["DJF", "JJA"]},
        ("warming_level", "season"),
    )
    assert changes.selection(levels, BASELINE) == {"warming_level": [2.0], "season": ["DJF", "JJA"]}
    assert changes.selection(levels[:, 0], BASELINE) == {"warming_level": [1.0, 2.0, 3.0]}


def test_curves_of_dates_go_through_the_turn_of_the_year(view: RunView, tmp_path: Path) -> None:
    """The reference of 366 days is on the simulations' standard year."""
    dates = np.array([[350.0, 10, 364, 2], [355, 20, 5, 8], [1, 30, 12, 350]])
    attrs = {"units": "1", "standard_name": "day_of_year", "is_dayofyear": np.int32(1)}
    axes = {"lat": ("lat", [45.0, 46], {"units": "degrees_north"}), "lon": ("lon", [5.0, 6], {"units": "degrees_east"})}

    def yearly(values: np.ndarray, calendar: str) -> xr.Dataset:
        time = xr.date_range("1992-01-01", periods=4, freq="YS", calendar=calendar, use_cftime=True)
        field = np.broadcast_to(values[:, None, None], (4, 2, 2))
        data = (("time", "lat", "lon"), field, {**attrs, "calendar": calendar})
        return xr.Dataset({"frost": data}, {"time": time, **axes}, {"cat:xrfreq": "YS-JAN"})

    ens = ensemble.join({f"m{at}": yearly(one, "noleap") for at, one in enumerate(dates)})
    made = ensemble.statistics(ens, ensemble.present(ens))
    names = ("frost_p10", "frost_p50", "frost_p90")
    kept = dict(zip((*names, "frost_members"), ("low", "median", "high", "members"), strict=True))
    means = changes.domain_means(made[list(kept)].rename(kept))
    store.write_store(yearly(np.array([366.0, 5, 360, 3]), "standard"), tmp_path / "reference.zarr", MARKER)
    shown = changes.Shown(Together("indicators", "YS-JAN", "scenario", "ssp585"), "frost", names, attrs, {}, means)
    own = replace(view, of_reference={"YS-JAN": tmp_path / "reference.zarr"})
    (curve,) = [one for one in changes._plume([shown], own) if isinstance(one, Drawing)]
    series, reference = curve.arguments
    drawn = series["ssp585"].squeeze("region")
    np.testing.assert_allclose(drawn["median"], np.median(np.where(dates > 180, dates - 365, dates), axis=0), atol=1e-3)
    assert (drawn["low"] < drawn["median"]).all() and (drawn["median"] < drawn["high"]).all()
    np.testing.assert_allclose(reference.squeeze("region"), [0, 5, -5, 3], atol=0.1)
    assert curve.options["label"] == "Day of year [day of the year]"
    assert isinstance(curve.drawn(), Picture)


@pytest.mark.parametrize("without", ["ensemble", "regions"])
def test_the_page_needs_only_one_of_both_rules(view: RunView, without: str) -> None:
    part = replace(view, ensembles=tuple(replace(one, **{without: None}) for one in view.ensembles))
    sections, numbers = changes.changes_sections(part)
    drawn = [block.name for section in sections for block in section.blocks if isinstance(block, Drawing)]
    assert bool(numbers) == (without != "ensemble") == any("delta" in name for name in drawn)
    assert "tx_mean+YS-JAN+plumes" in drawn
    (table,) = [block for block in sections[1].blocks if isinstance(block, Table)]
    assert {row[0] for row in table.rows} == ({*REGIONS} if without == "ensemble" else {"whole domain"})


def test_curves_are_running_means_over_thin_years_in_the_units_of_people(view: RunView) -> None:
    (one, *_) = [block for block in changes.changes_sections(view)[0][1].blocks if isinstance(block, Drawing)][::-1]
    series, reference = one.arguments
    axes = one.draw(series, reference, **one.options).axes[0]
    assert axes.get_ylabel() == "Mean daily maximum temperature [°C]" and -30 < axes.get_ylim()[0] < 40
    thick = {line.get_label(): line for line in axes.lines if line.get_linewidth() > 1}
    assert {"SSP2-4.5", "SSP5-8.5", "reference"} == thick.keys()
    years = series["ssp585"]["median"].isel(region=0)
    means = years.to_series().rolling(10, center=True).mean()
    np.testing.assert_allclose(thick["SSP5-8.5"].get_ydata(), means)
    assert len([line for line in axes.lines if line.get_linewidth() == 0.5]) == len(thick)


def test_running_means_leave_out_gaps_of_years_and_the_legend_names_years_where_there_are_too_few(
    view: RunView,
) -> None:
    (one, *_) = [block for block in changes.changes_sections(view)[0][1].blocks if isinstance(block, Drawing)][::-1]
    series, _ = one.arguments
    year = series["ssp585"]["time"].dt.year
    first = int(year[0])
    with_gap = {"ssp585": series["ssp585"].isel(time=((year < first + 12) | (year > first + 17)).values)}
    axes = changes.plumes(with_gap, None).axes[0]
    thin, thick = ({int(x): y for x, y in zip(*line.get_data(), strict=True) if np.isfinite(y)} for line in axes.lines)
    assert len(thin) == with_gap["ssp585"].sizes["time"]
    assert {first + 5, first + 7} <= thick.keys() and thick.keys().isdisjoint(range(first + 8, first + 23))
    figure = changes.plumes({"ssp585": series["ssp585"].isel(time=slice(9))}, None)
    (handle,), (text,) = figure.legends[0].legend_handles, figure.legends[0].get_texts()
    assert text.get_text() == "SSP5-8.5" and handle.get_linewidth() == 0.5


def test_figures_and_sections_are_called_what_people_call_them(tmp_path: Path) -> None:
    view = write_changes_run(tmp_path, ("YS-JAN", "QS-DEC"), regions=False)
    sections, _ = changes.changes_sections(view)
    names = ("Mean daily maximum temperature", "Total accumulated precipitation")
    assert {one.title for one in sections[1:]} == {*names, *(f"{name}, by season" for name in names)}
    titles = [block.options["title"] for one in sections for block in one.blocks if isinstance(block, Drawing)]
    assert f"{names[0]}: changes in SSP5-8.5" in titles
    assert not any(code in title for code in ("tx_mean", "prcptot", "YS", "QS", "ssp", "(s)") for title in titles)
    (table,) = [block for block in sections[0].blocks if isinstance(block, Table) and block.columns[0] == "Indicator"]
    assert f"{names[1]}, by season: June to August" in {row[0] for row in table.rows}


def test_stores_that_are_not_made_are_named(view: RunView, tmp_path: Path) -> None:
    lost = replace(view, ensembles=tuple(replace(one, ensemble=tmp_path / "no.zarr") for one in view.ensembles))
    sections, _ = changes.changes_sections(lost)
    assert any(
        f"{tmp_path}/no.zarr: not made" in block.text for block in sections[0].blocks if isinstance(block, Warned)
    )


def test_the_summary_has_each_indicators_numbers_wherever_any_is_drawn(tmp_path: Path) -> None:
    view = write_changes_run(tmp_path, ("YS-JAN", "QS-DEC"), regions=False)
    sections, _ = changes.changes_sections(replace(view, of_reference={}))
    (table,) = [block for block in sections[0].blocks if isinstance(block, Table) and block.columns[0] == "Indicator"]
    at = {name: index for index, name in enumerate(table.columns)}
    assert {"at +1 K", "at +2 K", "at +4 K", "SSP5-8.5, 2001-2020", "SSP5-8.5, 2021-2040"} <= at.keys()
    assert not any("1991-2010" in name or "+5 K" in name for name in at)
    for row in table.rows:
        assert "–" not in {row[at[name]] for name in at}, row
        assert row[at["at +4 K"]].endswith(", 2 of 6 simulations") and "of" not in row[at["at +2 K"]]
    titles = [block.caption for one in sections for block in one.blocks if isinstance(block, Drawing)]
    assert not any("black" in title for title in titles)
    tables = [block for one in sections[1:] for block in one.blocks if isinstance(block, Table)]
    assert tables and not any("raw" in name for one in tables for name in one.columns)


def test_two_simulations_of_a_level_have_no_percentiles_and_no_verdict_but_are_drawn(tmp_path: Path) -> None:
    view = write_changes_run(tmp_path, fewest=3)
    sections, numbers = changes.changes_sections(view)
    ensemble = store_of(view, "warming_levels", "all").sel(warming_level=4.0)
    assert ensemble[f"{TX}_p50"].isnull().all() and ensemble[f"{TX}_agree"].isnull().all()
    assert set(np.unique(ensemble[f"{TX}_advanced"].fillna(99))) == {99}
    (overview,) = [
        block for block in sections[0].blocks if isinstance(block, Table) and block.columns[0] == "Indicator"
    ]
    cell = overview.rows[0][overview.columns.index("at +4 K")]
    assert re.fullmatch(r"[\d.]+ to [\d.]+ \(2 simulations\)", cell)
    (table,) = [block for block in sections[1].blocks if isinstance(block, Table)]
    assert [row[6:] for row in table.rows if row[2] == "+4 K"] == [["–", "2"]] * len(REGIONS)
    drawn = numbers["tx_mean+YS-JAN+warming_levels+all.nc"].sel(warming_level=4.0)
    for name, end in (("p10", "min"), ("p50", "mean"), ("p90", "max")):
        assert drawn[f"{TX}_{name}"].isnull().all()
        xr.testing.assert_allclose(drawn[f"{TX}_{end}"], ensemble[f"{TX}_{end}"])
    (maps,) = [
        block for one in sections for block in one.blocks
        if isinstance(block, Drawing) and block.name == "tx_mean+YS-JAN+warming_levels+all"
    ]  # fmt: skip
    assert isinstance(maps.drawn(), Picture)
    figure = changes.change_maps(*maps.arguments, **maps.options)
    few = figure.axes[-4:-1]
    assert [axes.get_title() for axes in figure.axes[:3]] == ["10th percentile", "Median", "90th percentile"]
    assert [axes.texts[0].get_text() for axes in few] == ["Lowest", "Mean", "Highest"]
    (image,) = few[1].images
    middle = np.ma.masked_invalid(image.get_array()).ravel()
    expected = ensemble[f"{TX}_mean"].values
    np.testing.assert_allclose(np.sort(middle.compressed()), np.sort(expected[np.isfinite(expected)]), rtol=1e-5)
    assert "fewer than 3 simulations" in " ".join(text.get_text() for text in figure.texts).replace("\n", " ")


def test_an_indicator_that_only_the_regions_have_hides_no_other(view: RunView, tmp_path: Path) -> None:
    """The ensemble is older than an indicator that was added, which the regions have."""
    at = next(one for one in view.ensembles if one.product == "delta")
    older = store.open_store(at.ensemble).load()
    lost = [name for name in older.data_vars if str(name).startswith("prcptot")]
    store.write_store(older.drop_vars(lost), tmp_path / "older.zarr", store.Marker("Example", {}, {}, {}, "abc"))
    some = tuple(replace(one, ensemble=tmp_path / "older.zarr") if one == at else one for one in view.ensembles)
    sections, numbers = changes.changes_sections(replace(view, ensembles=some))
    told = [block.text for block in sections[0].blocks if isinstance(block, Warned)]
    assert any(f"prcptot in {tmp_path / 'older.zarr'}: not made" in text for text in told)
    assert not any("No changes" in block.text for one in sections for block in one.blocks if isinstance(block, Text))
    assert f"tx_mean+YS-JAN+delta+{at.experiment}.nc" in numbers
    assert f"prcptot+YS-JAN+delta+{at.experiment}.nc" not in numbers


def test_a_damaged_store_is_named_and_the_others_are_shown(view: RunView, tmp_path: Path) -> None:
    at, (first, *others) = view.ensembles[1], view.ensembles
    damaged = tmp_path / "damaged.zarr"
    shutil.copytree(at.ensemble, damaged)
    chunks = [one for one in damaged.glob(f"{TX}_p50/**/*") if one.is_file() and not one.name.startswith(("z", "."))]
    for chunk in chunks:
        chunk.write_bytes(b"?" * chunk.stat().st_size)
    assert chunks
    lost = replace(view, ensembles=(replace(at, ensemble=damaged, regions=None), first, *others))
    sections, _ = changes.changes_sections(lost)
    assert any(f"{damaged}: " in block.text for block in sections[0].blocks if isinstance(block, Warned))
    assert len(sections) == 3


def test_a_page_of_many_indicators_or_large_maps_is_bounded(view: RunView, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOST_MAPS", "MOST_OPEN", "MOST_BYTES"):
        monkeypatch.setattr(changes, name, 1)
    sections, numbers = changes.changes_sections(view)
    blocks = [block for section in sections for block in section.blocks]
    names = [block.name for block in blocks if isinstance(block, Drawing) and "delta" in block.name]
    assert not numbers and not any(isinstance(block, Link) for block in blocks)
    assert names and all(name.endswith("ssp585") for name in names)
    assert [section.folded for section in sections] == [False, True, True]
    assert any(
        str(view.ensembles[1].ensemble) not in block.text and "are of" not in block.text
        for block in blocks
        if isinstance(block, Text)
    )
    assert any(f"{TX}_p50" in block.text and ".zarr" in block.text for block in blocks if isinstance(block, Text))


def test_a_folder_of_other_things_is_not_replaced_by_the_page(view: RunView, tmp_path: Path) -> None:
    mine = tmp_path / "mine-changes" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("years of work")
    with pytest.raises(StoreError, match="mine-changes was not replaced"):
        write_report(view, tmp_path / "mine.html")


@pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))
def test_a_browser_shows_the_page_whole(written: Path, tmp_path: Path) -> None:
    with Browser(tmp_path / "browser") as browser:
        browser.open((written.parent / "report-changes" / "index.html").as_uri())
        browser.evaluate("[...document.images].forEach(one => one.loading = 'eager')")
        browser.until("[...document.images].every(one => one.complete)")
        assert browser.evaluate("document.images.length") == 8
        assert browser.evaluate("[...document.images].filter(one => !one.naturalWidth || !one.alt).length") == 0
        assert browser.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert browser.errors == []
