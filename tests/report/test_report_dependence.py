"""What a report says of variables that are adjusted together: against scipy, and in a browser."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from report_examples import DOMAIN

from espo_luigi.report.dependence import together_figure, together_section
from espo_luigi.report.drawings import Drawing
from espo_luigi.report.html import Table
from espo_luigi.science import display
from espo_luigi.science.diagnose import added_value, climate_aspects

DATA = Path(__file__).parents[1] / "data"
GROUP = ("tasmax", "pr")
PERIOD = (1981, 1991)


def opened(file: str) -> xr.Dataset:
    ds = display.in_display_units(xr.load_dataset(DATA / file).rename(location="cell").reset_coords(drop=True))
    ds = ds.sel(time=slice(*map(str, PERIOD))).transpose("time", "cell")
    return ds.assign(pr=ds["pr"].assign_attrs(standard_name="precipitation_flux"))


def mapped(simulation: xr.Dataset, reference: xr.Dataset) -> xr.Dataset:
    """Each variable's values replaced by the reference's quantiles: what pairs have in common is left as it was."""
    made = simulation.copy(deep=True)
    for name, cell in itertools.product(GROUP, range(3)):
        levels = simulation[name][:, cell].rank("time", pct=True)
        made[name][:, cell] = np.nanquantile(reference[name][:, cell], levels)
    return made


@pytest.fixture(scope="module")
def sources() -> dict[str, xr.Dataset]:
    """The product is the reference of two days later: its joint distribution is right, its dates are not."""
    reference, raw = opened("ahccd_1950-2013.nc"), opened("CanESM2_1950-2100.nc")
    product = reference.roll(time=2).map(lambda da: da.assign_attrs(reference[da.name].attrs))
    return {"reference": reference, "raw": raw, "DQM": mapped(raw, reference), "adjusted": product}


@pytest.fixture(scope="module")
def compared(sources: dict[str, xr.Dataset]) -> xr.Dataset:
    beside = {name: ds.roll(cell=1) for name, ds in sources.items()}
    sums = climate_aspects.yearly_sums(sources, beside, period=PERIOD, together=[GROUP])
    made = added_value.compare_aspects(
        [sums], adjusted=GROUP, seed="a", known=climate_aspects.aspects_of(GROUP, together=[GROUP])
    )
    energy = climate_aspects.energies(sources, groups=[GROUP], random=np.random.default_rng(1))
    return made.merge(energy).assign_attrs(together="tasmax, pr by MBCn")


def test_a_table_has_correlations_spells_and_energy_distances_of_all_sources(
    compared: xr.Dataset, sources: dict[str, xr.Dataset]
) -> None:
    from scipy.stats import spearmanr

    (section,) = together_section({("pool", DOMAIN): compared})
    assert "tasmax, pr by MBCn" in section.blocks[0].text  # type: ignore[attr-defined]
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    rows = {row[0]: [*row[1:]] for row in table.rows}
    wanted = []
    for name in ("reference", "raw", "DQM", "adjusted"):
        winter = sources[name].sel(time=sources[name]["time"].dt.season == "DJF")
        winter = winter.assign(pr=winter["pr"].where(~(winter["pr"] < 1), 0))
        pairs = [(winter["tasmax"][:, cell], winter["pr"][:, cell]) for cell in range(3)]
        wanted.append(np.mean([spearmanr(*pair, nan_policy="omit").statistic for pair in pairs]))
    row = rows["Correlation of tasmax and precipitation, DJF, dry days alike"]
    numbers = [float(text.replace("−", "-")) for text in row[:4]]
    np.testing.assert_allclose(numbers, wanted, rtol=6e-3)
    assert {"Lag-1 autocorrelation of tasmax, JJA", "Wet days", "Mean length of dry spells"} < set(rows)
    assert not any(name.startswith("Mean tasmax") for name in rows), "right by construction, and told of elsewhere"
    unknown, raw, usual, product, noise, units = rows["Energy distance of tasmax, pr, JJA"]
    assert (unknown, units) == ("–", "1")
    assert float(product) < float(noise) < float(usual) < float(raw)


def test_a_run_without_variables_together_has_no_section_and_many_pools_have_a_figure_of_each_domain(
    compared: xr.Dataset,
) -> None:
    assert together_section({("pool", DOMAIN): compared.drop_vars(["energy", "energy_noise"])}) == []
    (section,) = together_section({(f"pool{number}", DOMAIN): compared for number in range(9)})
    (figure,) = (block for block in section.blocks if isinstance(block, Drawing))
    assert figure.name == f"together+{DOMAIN}"


def test_the_figure_has_a_mark_of_each_source_and_the_noise(compared: xr.Dataset) -> None:
    left, right = together_figure(compared.mean("cell")).axes
    assert [text.get_text() for text in left.get_yticklabels()][:2] == [
        "tasmax and precipitation, DJF, dry days alike",
        "tasmax and precipitation, JJA, dry days alike",
    ]
    assert [line.get_label() for line in left.lines] == ["reference", "raw", "DQM", "adjusted"]
    assert next(text.get_text() for text in right.get_yticklabels()) == "tasmax, pr, DJF"
    (noise,) = right.collections
    places = [line[0, 0] for line in noise.get_segments()]
    np.testing.assert_allclose(places, compared["energy_noise"].mean("cell").values)
    assert right.get_xscale() == "log" and not right.patches
