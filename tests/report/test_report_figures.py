"""What figures draw, from matplotlib's own artists: data against numpy and xarray, labels with names and units."""

import io
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from report_examples import BIAS, RATIO, compared, field, measures, properties

from espo_luigi.report import distributions, improvement, maps
from espo_luigi.report.drawings import png, short
from espo_luigi.report.maps import map_lines
from espo_luigi.science.display import units_text
from espo_luigi.science.variables import VARIABLES


def titled(figure: Figure, words: str) -> Axes:
    (found,) = [axes for axes in figure.axes if axes.get_title().replace("\n", " ").startswith(words)]
    return found


def mesh_of(axes: Axes) -> np.ndarray:
    (image,) = axes.images
    return np.ma.filled(image.get_array().astype(float), np.nan).reshape(-1)


@pytest.fixture(scope="module")
def five() -> Figure:
    datasets = [properties(0.0), properties(2.0), properties(0.5), measures(2.0), measures(0.5)]
    return maps.property_maps(*(ds["mean_pr"] for ds in datasets), title="a title", known=VARIABLES["pr"])


def test_maps_show_fields_and_biases_in_millimetres_a_day_and_the_sea_grey(five: Figure) -> None:
    for words, ds in (
        ("Reference", properties(0.0)),
        ("Simulation, raw", properties(2.0)),
        ("Scenario, adjusted", properties(0.5)),
    ):
        np.testing.assert_allclose(mesh_of(titled(five, words)), 86400 * ds["mean_pr"].values.reshape(-1))
    bias = mesh_of(titled(five, "Simulation minus reference"))
    assert np.isnan(bias[0])
    np.testing.assert_allclose(bias[1:], 0.2)


def test_maps_of_one_kind_share_a_scale_and_biases_are_centred_on_zero(five: Figure) -> None:
    fields = [titled(five, words).images[0].norm for words in ("Reference", "Simulation, raw", "Scenario, adjusted")]
    everything = 86400 * np.concatenate(
        [properties(offset)["mean_pr"].values.ravel()[1:] for offset in (0.0, 2.0, 0.5)]
    )
    for norm in fields:
        assert (norm.vmin, norm.vmax) == pytest.approx((everything.min(), everything.max()))
    for words in ("Simulation", "Scenario"):
        norm = titled(five, f"{words} minus reference").images[0].norm
        assert (norm.vmin, norm.vmax) == pytest.approx((-0.2, 0.2))


def test_the_axes_of_maps_and_their_scales_have_names_and_units(five: Figure) -> None:
    reference = titled(five, "Reference")
    assert (reference.get_xlabel(), reference.get_ylabel()) == ("Longitude [°E]", "Latitude [°N]")
    said = [axes.get_xlabel().replace("\n", " ") for axes in [*five.axes, *five.axes[3].child_axes]]
    assert "Mean precipitation [mm/d]" in said
    assert "Difference from the reference [mm/d]" in said


def test_maps_and_tables_of_tasmax_have_the_same_units() -> None:
    five = [properties(0.0), properties(2.0), properties(0.5), measures(2.0), measures(0.5)]
    figure = maps.property_maps(*(ds["mean_tasmax"] for ds in five), known=maps.row_of("mean_tasmax"))
    np.testing.assert_allclose(mesh_of(titled(figure, "Reference")), five[0]["mean_tasmax"].values.ravel() - 273.15)
    np.testing.assert_allclose(mesh_of(titled(figure, "Simulation minus reference"))[1:], 2.0)
    scales = [axes.get_xlabel().rpartition("[")[2] for axes in figure.axes[3].child_axes]
    tables = [units_text(compared()[f"tasmax_{of}"].attrs["units"]) + "]" for of in ("cycle", "change")]
    assert scales == tables == ["°C]", "K]"]


def test_a_cell_of_the_file_has_the_colour_of_its_value(five: Figure) -> None:
    picture = np.asarray(Image.open(io.BytesIO(png(five))).convert("RGB"))
    for words, offset in (("Reference", 0.0), ("Simulation minus reference", None)):
        axes = titled(five, words)
        across, up = axes.transData.transform((-69.0, 45.5))
        value = 0.2 if offset is None else 86400 * float(properties(offset)["mean_pr"].sel(lat=45.5, lon=-69.0))
        expected = 255 * np.asarray(axes.images[0].to_rgba(value))[:3]
        np.testing.assert_allclose(picture[picture.shape[0] - int(up), int(across)], expected, atol=1)


def test_a_ratio_is_shown_around_one() -> None:
    one = field(np.full((3, 4), 2.0), "Amplitude", "", history=RATIO)
    half = field(np.full((3, 4), 0.8), "Amplitude", "", history=RATIO)
    whole = field(np.full((3, 4), 40.0), "Amplitude", "%")
    figure = maps.property_maps(whole, whole, whole, one, half)
    norm = titled(figure, "Simulation, ratio to the reference").images[0].norm
    assert (norm.vmin, norm.vmax) == (0.5, 2.0)
    assert norm(1.0) == pytest.approx(0.5)


def test_a_line_goes_around_the_cells_that_have_data(five: Figure) -> None:
    outline, *_ = titled(five, "Reference").lines
    corners = {tuple(np.round(point, 3)) for point in outline.get_xydata() if np.isfinite(point).all()}
    assert corners == {(-69.75, 44.75), (-69.75, 45.25), (-70.25, 45.25)}


def test_every_map_has_the_coast_and_goes_no_further_than_its_cells() -> None:
    at_sea = properties(0.0)["mean_tasmax"].assign_coords(lon=[-64.5, -64.0, -63.5, -63.0], lat=[44.0, 44.5, 45.0])
    figure = maps.property_maps(at_sea, at_sea, at_sea, at_sea * 0, at_sea * 0)
    shown = [axes for axes in figure.axes if axes.images]
    assert len(shown) == 5
    for axes in shown:
        assert [len(of.get_xydata()) / 3 for of in axes.lines[1:]] == [*map(len, map_lines(at_sea).values())]
        assert (axes.get_xlim(), axes.get_ylim()) == ((-64.75, -62.75), (43.75, 45.25))


def test_maps_of_a_rotated_grid_and_of_one_row_can_be_drawn() -> None:
    rotated = properties(0.0)["mean_tasmax"].rename(lat="rlat", lon="rlon").isel(rlat=[1])
    measure = rotated.assign_attrs(history=BIAS) * 0
    figure = maps.property_maps(rotated, rotated, rotated, measure, measure)
    assert len(png(figure)) > 1000


@pytest.fixture(scope="module")
def shares() -> xr.DataArray:
    values = [[1.0, 0.25, 0.5], [0.75, np.nan, 1.0]]
    coords = {"realization": ["A", "B"], "properties": ["mean_tasmax", "dry_wet", "mean_dtr"]}
    return xr.DataArray(values, coords, ("realization", "properties"))


def test_the_matrix_has_every_simulation_below_the_published_values(shares: xr.DataArray) -> None:
    axes = improvement.improvement_matrix(shares, title="Magtogoek").axes[0]
    drawn = np.ma.filled(axes.images[0].get_array(), np.nan)
    np.testing.assert_array_equal(drawn, [[1.0, 0.62, np.nan], *shares.values])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["ESPO-G6-R2, published", "A", "B"]
    assert [label.get_text() for label in axes.get_xticklabels()] == list(shares["properties"].values)
    assert sorted(text.get_text() for text in axes.texts) == ["0.25", "0.50", "0.62", "0.75", "1.00", "1.00", "1.00"]


@pytest.fixture(scope="module")
def series() -> dict[str, list[xr.Dataset]]:
    found = compared()
    return {kind: [found.sel(source=kind)] for kind in ("reference", "raw", "adjusted")}


def lines_of(axes: Axes) -> dict[str, np.ndarray]:
    return {line.get_label(): np.asarray(line.get_ydata()) for line in axes.lines}


def test_the_annual_cycle_has_a_line_for_each_dataset_with_its_monthly_means(
    series: dict[str, list[xr.Dataset]],
) -> None:
    from report_examples import daily

    axes = distributions.annual_cycle(series).axes[0]
    expected = daily(2, warmer=2.0)["tasmax"].mean("cell").groupby("time.month").mean()
    np.testing.assert_allclose(lines_of(axes)["raw"], expected)
    assert lines_of(axes).keys() == {"reference", "raw", "adjusted"}
    assert axes.get_title() == "Daily maximum temperature"
    assert axes.get_ylabel() == "Mean of each month [°C]"


def test_means_of_years_are_thin_below_their_running_means(series: dict[str, list[xr.Dataset]]) -> None:
    axes = distributions.yearly_means(series).axes[0]
    thin, thick = (line for line in axes.lines if line.get_label() == "adjusted")
    assert thin.get_linewidth() == 0.5 < thick.get_linewidth()
    values = series["adjusted"][0]["tasmax_yearly"].to_series()
    np.testing.assert_allclose(thin.get_ydata(), values)
    np.testing.assert_allclose(thick.get_ydata(), values.rolling(10, center=True).mean())


def test_the_tail_of_quantiles_is_the_highest_of_tasmax_and_the_lowest_of_tasmin(
    series: dict[str, list[xr.Dataset]],
) -> None:
    figure = distributions.quantile_quantile(series)
    top, bottom = (
        titled(figure, "Daily maximum temperature: highest 5 %"),
        titled(figure, "Daily minimum temperature: lowest 5 %"),
    )
    reference = series["reference"][0]
    assert min(top.lines[0].get_xdata()) == pytest.approx(float(reference["tasmax_quantile"].sel(quantile=0.95)))
    assert max(bottom.lines[0].get_xdata()) == pytest.approx(float(reference["tasmin_quantile"].sel(quantile=0.05)))
    assert top.get_xlabel() == "Reference [°C]"


def test_the_signal_is_drawn_by_quantile_and_season_without_the_reference(series: dict[str, list[xr.Dataset]]) -> None:
    figure = distributions.climate_change_signal({kind: series[kind] for kind in ("raw", "adjusted")})
    summer = figure.axes[2]
    np.testing.assert_allclose(lines_of(summer)["raw"], series["raw"][0]["tasmax_change"].sel(season="JJA"))
    assert figure.axes[0].get_ylabel().replace("\n", " ") == "Change of Daily maximum temperature [K]"
    assert figure.axes[8].get_ylabel().endswith("[%]")


def test_many_simulations_are_thin_lines_and_counted_in_the_legend(series: dict[str, list[xr.Dataset]]) -> None:
    many = {"reference": series["reference"], "raw": series["raw"] * 5, "adjusted": series["adjusted"] * 5}
    figure = distributions.annual_cycle(many)
    assert [line.get_linewidth() for line in figure.axes[0].lines] == [1.8, 0.6, 0.6]
    cycle = lines_of(figure.axes[0])
    one = lines_of(distributions.annual_cycle(series).axes[0])["raw"]
    np.testing.assert_array_equal(cycle["raw"], np.concatenate([*([*one, np.nan] for _ in range(4)), one]))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "reference",
        "raw (5 simulations)",
        "adjusted (5 simulations)",
    ]


def test_a_simulation_is_named_by_source_experiment_and_member() -> None:
    assert short("CMIP6_ScenarioMIP_CCCma_CanESM5_ssp585_r1i1p1f1_global") == "CanESM5 ssp585 r1i1p1f1"
    assert short("mine") == "mine"


def test_what_runs_jobs_does_not_import_matplotlib() -> None:
    program = "import sys, espo_luigi.job, espo_luigi.tasks, espo_luigi.report.make\nprint('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stdout + done.stderr


def test_properties_are_in_the_order_of_the_published_ones(shares: xr.DataArray) -> None:
    mixed = shares.isel(properties=[2, 1, 0])
    assert list(improvement.in_published_order(mixed)["properties"].values) == ["mean_tasmax", "dry_wet", "mean_dtr"]
    np.testing.assert_array_equal(improvement.in_published_order(mixed), shares)


def test_the_published_values_are_nineteen_means_between_their_lowest_and_highest() -> None:
    assert len(improvement.PUBLISHED) == 19
    assert all(low <= mean <= high <= 1 for mean, low, high in improvement.PUBLISHED.values())
