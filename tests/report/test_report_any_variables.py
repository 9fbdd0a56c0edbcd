"""A report, and what is not calibrated, of any set of variables: one, four of which one is unknown, and ten."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from report_examples import SIMULATIONS, field, write_run

from espo_luigi import store
from espo_luigi.report import distributions, improvement, make, maps
from espo_luigi.report.drawings import Drawing
from espo_luigi.report.html import Section, Table, Text
from espo_luigi.report.reading import Diagnosed, Reader
from espo_luigi.science import display
from espo_luigi.science.diagnose import added_value, climate_aspects, summaries
from espo_luigi.science.variables import VARIABLES, Variable

YEARS = (1991, 2002)
# What a day has on average, in the units of products; the spread is a tenth.
VALUES = {
    "tas": 283.0,
    "tasmax": 288.0,
    "tasmin": 278.0,
    "pr": 3.0 / 86400,
    "hurs": 70.0,
    "huss": 0.007,
    "rsds": 200.0,
    "sfcWind": 4.0,
    "psl": 101_000.0,
    "ozone": 300.0,
}
FOUR = ("hurs", "rsds", "sfcWind", "ozone")
# The configuration names the least ozone of a day that counts, to have a second variable with dry days.
TABLE = {**VARIABLES, "ozone": Variable(units="ug m-3", wet=295.0, long_name="Ozone", colours="magma")}


def daily(names: tuple[str, ...], seed: int, factor: float = 1.0) -> xr.Dataset:
    """Daily series of two cells in the units of products; half of the days have no precipitation."""
    random = np.random.default_rng(seed)
    time = xr.date_range("1991-01-01", periods=365 * 12, calendar="noleap", use_cftime=True)
    season = 0.02 * np.sin(2 * np.pi * np.arange(time.size) / 365)[:, None]
    made = {}
    for name in names:
        values = VALUES[name] * factor * (1 + season + 0.05 * random.standard_normal((time.size, 2)))
        values = np.where(random.random(values.shape) < 0.5, values, 0.0) if name == "pr" else values
        attrs = {"units": VARIABLES[name].units if name in VARIABLES else "ug m-3"}
        attrs |= {"standard_name": "precipitation_flux"} if name == "pr" else {}
        made[name] = (("time", "cell"), values, attrs)
    return xr.Dataset(made, {"time": time})


def sources(names: tuple[str, ...]) -> dict[str, xr.Dataset]:
    series = {"reference": daily(names, 1), "raw": daily(names, 2, 1.1), "adjusted": daily(names, 3)}
    return {kind: display.in_display_units(ds, names, table=TABLE) for kind, ds in series.items()}


def summarised(names: tuple[str, ...]) -> xr.Dataset:
    periods = ((1991, 2020), (2071, 2100))
    return summaries.compare(sources(names), period=YEARS, periods=periods, table=TABLE).assign_attrs(cells="2 of 2")


def drawings_of(sections: list[Section]) -> dict[str, Drawing]:
    return {block.name: block for section in sections for block in section.blocks if isinstance(block, Drawing)}


def sections_of(names: tuple[str, ...]) -> list[Section]:
    place = Path("absent")
    diagnosed = Diagnosed("a_simulation", "a domain", place, place, place, place, place, place, place)
    summaries = {diagnosed: summarised(names)}
    return [
        distributions.series_section(summaries, Reader(), YEARS),
        distributions.change_section(summaries, Reader(), make.WANTED_PERIODS, TABLE),
    ]


@pytest.mark.parametrize(
    ("names", "absent"),
    [
        (("tas",), ("wet-days", "correlations")),
        (FOUR[:3], ("wet-days",)),
        (tuple(VALUES), ()),
    ],
)
def test_figures_have_a_panel_with_data_for_each_variable_and_no_empty_figure(
    names: tuple[str, ...], absent: tuple[str, ...]
) -> None:
    drawings = drawings_of(sections_of(names))
    kinds = {"annual-cycle": 1, "quantiles": 2, "wet-days": 0, "correlations": 0, "yearly-means": 1, "change": 4}
    assert {name.partition("+")[0] for name in drawings} == kinds.keys() - {*absent}
    for name, drawing in drawings.items():
        figure = drawing.draw(*drawing.arguments, **drawing.options)
        shown = [axes for axes in figure.axes if axes.axison]
        if panels := kinds[name.partition("+")[0]]:
            assert len(shown) == panels * len(names), name
        for axes in shown:
            values = [np.asarray(line.get_ydata(), float) for line in axes.lines] or [np.ones(1)]
            assert any(np.isfinite(of).any() for of in values), name
        figure.canvas.draw()
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert box.x0 >= -0.03 and box.y0 >= 0 and box.x1 <= width + 0.03 and box.y1 <= height, (name, box)
        labels = [axes.get_ylabel() for axes in shown if axes.get_ylabel()]
        assert labels and all(label.rstrip().endswith("]") for label in labels)


def test_the_change_is_per_cent_of_what_is_multiplied_and_a_difference_of_the_others() -> None:
    (table,) = (block for block in sections_of(tuple(VALUES))[1].blocks if isinstance(block, Table))
    units = {row[2]: row[-1] for row in table.rows}
    relative = {"pr", "huss", "rsds", "sfcWind"}
    assert {name for name, unit in units.items() if unit == "%"} == {*relative, "hurs"}
    assert (units["tas"], units["psl"], units["ozone"]) == ("K", "hPa", "ug m-3")
    assert list(units) == display.in_order(VALUES), "variables are in the table's order, the unknown one last"


def test_a_day_is_wet_by_the_table_s_threshold_and_the_text_names_it() -> None:
    only = sections_of(("ozone",))[0]
    text = next(block.text for block in only.blocks if isinstance(block, Text))
    assert text.endswith("A day of ozone of 295 ug/m³ or more is wet.")
    found = summarised(("ozone",))["wet_day_frequency"].sel(source="reference", month=7)
    july = daily(("ozone",), 1)["ozone"]
    july = july.sel(time=july["time"].dt.month == 7)
    assert float(found) == pytest.approx(float((july >= 295).mean()))


def test_aspects_are_those_of_the_variables_and_precipitation_is_not_needed() -> None:
    of = sources(FOUR)
    sums = climate_aspects.yearly_sums(
        of, {kind: ds.roll(cell=1) for kind, ds in of.items()}, period=YEARS, table=TABLE
    )
    known = climate_aspects.aspects_of(FOUR, TABLE)
    assert set(sums.data_vars) == set(known)
    assert {"mean_hurs_DJF", "below_q05_rsds", "lag1_sfcWind_JJA", "between_years_ozone"} <= set(known)
    assert {"corr_hurs_rsds_JJA", "wet_days_ozone", "longest_dry_spell_ozone"} <= set(known)
    assert not {"heat_wave_days", "snow_days", "most_in_5_days", "most_in_5_days_ozone", "wet_days"} & set(known)
    found = added_value.compare_aspects([sums], adjusted=FOUR, seed="a", known=known)
    units = {str(name): str(found["units"].sel(aspect=name).item()) for name in found["aspect"].values}
    assert units["mean_hurs_DJF"] == "%" and units["between_years_ozone"] == "ug m-3"
    verdicts = {one.aspect: one for one in added_value.verdicts(found)}
    assert verdicts["mean_rsds_JJA"].word == "nearer" and verdicts["mean_rsds_JJA"].calibrated
    assert verdicts["wet_days_ozone"].long_name == "Wet days, ozone"
    (figure,) = [
        drawing
        for drawing in improvement.uncalibrated_section({("p", "d"): found}, Reader())[0].blocks
        if isinstance(drawing, Drawing)
    ]
    words = [text.get_text() for axes in figure.draw(*figure.arguments).axes for text in axes.get_yticklabels()]
    assert "Correlation of hurs and rsds, DJF" in words and len([word for word in words if word]) == len(known)


def test_an_unknown_variable_keeps_the_units_of_its_data() -> None:
    named = daily(("ozone",), 1).rename(ozone="aerosol")
    shown = display.in_display_units(named)
    xr.testing.assert_identical(shown["aerosol"], named["aerosol"].assign_attrs(long_name="aerosol"))
    found = summaries.compare({"reference": shown, "raw": shown}, period=YEARS, periods=((1991, 2020), (2071, 2100)))
    assert found["aerosol_change"].attrs["units"] == "ug m-3" and "wet_day_frequency" not in found
    assert climate_aspects.aspects_of(["aerosol"])["mean_aerosol_DJF"].units == ""


def properties(offset: float, measured: bool = False) -> xr.Dataset:
    """A mean wind, or how far it is from that of the reference."""
    values = (0.0 if measured else 4.0) + offset + np.zeros((3, 4))
    history = {"history": "bias: xsdba.measures.BIAS(sim=…)"} if measured else {}
    return xr.Dataset({"mean_sfcWind": field(values, "Mean wind", "m s-1", **history)})


def test_a_page_about_a_variable_that_was_never_published_has_only_its_own_numbers(tmp_path: Path) -> None:
    view = write_run(tmp_path)
    marker = store.Marker("Example", {}, {}, {}, "abc")
    for number, of in enumerate(view.diagnosed):
        made = {
            "reference": properties(0.0),
            "sim_prop": properties(1.0),
            "scen_prop": properties(0.1),
            "sim_meas": properties(1.0, measured=True),
            "scen_meas": properties(0.1, measured=True),
            "improvement": xr.Dataset(
                {"improved_grid_points": ("properties", [0.5 + number / 4])},
                {"properties": ["mean_sfcWind"]},
                {"cells": "one row and one column in 14, of 441000 land cells"},
            ),
            "summary": summarised(("sfcWind",)),
        }
        for name, ds in made.items():
            store.write_store(ds, path := tmp_path / f"{number}+{name}.zarr", marker)
            of = replace(of, **{name: path})
        view = replace(view, diagnosed=(*view.diagnosed[:number], of, *view.diagnosed[number + 1 :]), table=TABLE)
    make.write_report(view, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "could not be drawn" not in page and "ESPO-G6-R2" not in page and "Mean wind: " in page
    assert page.count("in 14, of 441000 land cells") == 1, "of a domain that is diagnosed in some of its cells"
    table = (tmp_path / "report-improvement.csv").read_text().splitlines()
    assert table[0] == "domain,simulation,mean_sfcWind" and len(table) == 1 + len(SIMULATIONS)


def test_maps_have_the_colours_of_their_property_s_variable() -> None:
    names = {"mean_hurs": "YlGnBu", "q99_ozone": "magma", "mean_tasmax": "viridis", "dry_spell_freq": "viridis"}
    assert {name: maps.row_of(name, TABLE).colours for name in names} == names
    wind = field(np.linspace(-2, 6, 12).reshape(3, 4), "Mean eastward wind", "m s-1")
    figure = maps.property_maps(wind, wind, wind, wind, wind, known=maps.row_of("mean_uas", TABLE))
    first = figure.axes[0].get_images()[0] if figure.axes[0].get_images() else figure.axes[0].collections[0]
    assert first.get_cmap().name == "PuOr" and first.get_clim() == (-6, 6), "white is calm"


@pytest.mark.parametrize(
    ("words", "colours"),
    [("Mean precipitation", "BrBG"), ("Longest dry spell", "BrBG_r"), ("Mean temperature", "RdBu_r"), ("Wind", "PuOr")],
)
def test_maps_of_bias_are_brown_where_it_is_too_dry_and_blue_where_it_is_too_cold(words: str, colours: str) -> None:
    values = field(np.linspace(1, 6, 12).reshape(3, 4), words, "1")
    figure = maps.property_maps(*[values] * 3, *[values - 3] * 2)
    images = [image for axes in figure.axes for image in (*axes.get_images(), *axes.collections)]
    assert {image.get_cmap().name for image in images if image.get_clim()[0] == -3} == {colours}


@pytest.mark.parametrize(("lowest", "is_centred"), [(-2, True), (2, False)])
def test_any_diverging_map_is_centred_where_values_have_both_signs(lowest: float, is_centred: bool) -> None:
    values = field(np.linspace(lowest, 6, 12).reshape(3, 4), "Ozone", "1")
    figure = maps.property_maps(*[values] * 5, known=Variable(colours="PuOr"))
    first = figure.axes[0].get_images()[0] if figure.axes[0].get_images() else figure.axes[0].collections[0]
    low, high = first.get_clim()
    assert (low == -high) is is_centred and high == 6


def test_the_tail_of_minima_is_the_lowest_as_the_run_s_table_has_it() -> None:
    levels = np.linspace(0, 1, 101)
    quantiles = xr.Dataset({"ozone_quantile": ("quantile", 20 * levels, {"units": "1"})}, {"quantile": levels})
    table = {"ozone": Variable(cell_methods="time: minimum")}
    of = {"reference": [quantiles], "raw": [quantiles], "adjusted": [quantiles]}
    titles = [axes.get_title() for axes in distributions.quantile_quantile(of, table=table).axes]
    assert any("lowest 5 %" in title for title in titles)


def test_the_longest_dry_spell_of_any_quantity_is_that_which_counting_finds() -> None:
    of = sources(("ozone",))
    sums = climate_aspects.yearly_sums(of, of, period=YEARS, table=TABLE)
    below = (daily(("ozone",), 1)["ozone"] < 295).sel(time="1994").values
    longest, run = np.zeros(2), np.zeros(2)
    for day in below:
        run = np.where(day, run + 1, 0)
        longest = np.maximum(longest, run)
    first, _ = sums["longest_dry_spell_ozone"].transpose("sum_2", ...)
    np.testing.assert_array_equal(first.sel(source="reference", year=1994), longest)
