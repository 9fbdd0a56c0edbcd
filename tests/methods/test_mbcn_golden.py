"""MBCn against the golden results of its author's own software, the R package MBC 0.10-6."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import pytest
import xarray as xr
import xsdba
from scipy.stats import rankdata
from together_samples import ISIMIP, SOURCES, STATIONS, Source, sample

from espo_luigi.methods.mbcn import transform
from espo_luigi.methods.mbcn.transform import Univariate
from espo_luigi.science.calendar import TimeAxis

AT_STATIONS, AT_BERLIN = SOURCES
without_isimip = pytest.mark.skipif(not ISIMIP.is_dir(), reason="no ../shared/data/isimip-berlin beside the project")
sources = pytest.mark.parametrize(
    "source", [AT_STATIONS, pytest.param(AT_BERLIN, marks=without_isimip)], ids=["stations", "berlin"]
)
# xsdba's for its own sake: both oracles agree.
cases = pytest.mark.parametrize(
    ("source", "engine", "period"),
    [
        (AT_STATIONS, "ours", "c"),
        (AT_STATIONS, "ours", "p"),
        (AT_STATIONS, "xsdba", "p"),
        pytest.param(AT_BERLIN, "ours", "c", marks=without_isimip),
        pytest.param(AT_BERLIN, "ours", "p", marks=without_isimip),
    ],
    ids=lambda one: getattr(one, "name", one),
)


class Made(NamedTuple):
    """Values of a period (variable, cell, day), adjusted with R's rotations, and the golden file."""

    values: np.ndarray
    golden: xr.Dataset


@functools.cache
def made(source: Source, engine: str, period: str, nodes: int | None = None) -> Made:
    """Adjust with R's nodes, as many as days from 0 to 1; or with so many as a configuration gives, and the nearest."""
    given = sample(source)
    golden = xr.open_dataset(STATIONS / "golden" / f"mbcn-{source.name}.nc").load()
    days = given.reference.shape[-1]
    levels = np.linspace(0, 1, days) if nodes is None else xsdba.utils.equally_spaced_nodes(nodes)
    interp = "linear" if nodes is None else "nearest"
    turns = golden["rotation"].values.transpose(0, 2, 1)  # R's rows are days.
    series = given.reference, given.historical, given.simulation if period == "p" else given.historical
    adjust = {"ours": _ours, "xsdba": _xsdbas}[engine]
    return Made(adjust(source.variables, series, turns, levels, interp), golden)


def _days(series: np.ndarray) -> xr.CFTimeIndex:
    """Any days: the window is all of them."""
    return xr.date_range("1979-01-01", periods=series.shape[-1], calendar="noleap", use_cftime=True)


def _ours(
    names: tuple[str, ...],
    series: tuple[np.ndarray, np.ndarray, np.ndarray],
    turns: np.ndarray,
    levels: np.ndarray,
    interp: str,
) -> np.ndarray:
    axis = TimeAxis.of_index("noleap", _days(series[0]))
    cells = series[0].shape[1]
    return transform.adjust(
        *series,
        transform.plan(axis, axis),
        rotations=np.broadcast_to(turns, (cells, 1, *turns.shape)),
        levels=levels,
        variables=[Univariate("*" if name == "pr" else "+", levels) for name in names],
        interp=interp,
    )


def _xsdbas(
    names: tuple[str, ...],
    series: tuple[np.ndarray, np.ndarray, np.ndarray],
    turns: np.ndarray,
    levels: np.ndarray,
    interp: str,
) -> np.ndarray:
    reference, historical, simulation = (
        xr.DataArray(
            one, {"multivar": list(names), "time": _days(one)}, ("multivar", "cell", "time"), attrs={"units": ""}
        )
        for one in series
    )
    matrices = xr.DataArray(
        turns,
        {"multivar": list(names)},
        ("iterations", "turned", "multivar"),
        attrs={"crd_dim": "multivar", "new_dim": "turned"},
    )
    trained = xsdba.MBCn.train(
        reference,
        historical,
        base_kws={"nquantiles": levels, "group": "time"},
        adj_kws={"interp": interp},
        rot_matrices=matrices,
    )
    own = {name: {"kind": "*" if name == "pr" else "+"} for name in names}
    how = {"base_kws_vars": own, "adj_kws": {"interp": interp}}
    return trained.adjust(sim=simulation, ref=reference, hist=historical, **how).transpose("multivar", ...).values


def correlations(values: np.ndarray) -> np.ndarray:
    """Rank correlations of each pair of variables, in each cell."""
    pairs = np.triu_indices(len(values), 1)
    return np.stack([np.corrcoef(rankdata(one, axis=-1))[pairs] for one in np.moveaxis(values, 1, 0)])


@cases
def test_each_day_has_the_rank_that_rs_rotations_give_it(source: Source, engine: str, period: str) -> None:
    """With R's nodes, and each part standardised by itself. Equal amounts may take each other's."""
    values, golden = made(source, engine, period)
    ranks = golden[f"rank_{period}"].values.astype(int)
    assert (np.sort(ranks, axis=-1) == np.arange(1, ranks.shape[-1] + 1)).all()
    expected = np.take_along_axis(np.sort(values, axis=-1), ranks - 1, axis=-1)
    # Round-off may exchange neighbours.
    assert (values != expected).mean() <= 0.002


@cases
def test_values_by_themselves_are_those_of_rs_quantile_delta_mapping(source: Source, engine: str, period: str) -> None:
    values, golden = made(source, engine, period)
    expected = np.sort(golden[f"mhat_{period}"].values, axis=-1)
    np.testing.assert_allclose(np.sort(values, axis=-1), expected, rtol=1e-5, atol=1e-5)


@sources
def test_usual_quantiles_give_the_rank_correlations_of_rs_whole_method(source: Source) -> None:
    """R standardises both periods together and has as many quantiles as days: alike, not equal, as xsdba's.

    By themselves, quantile delta mapping keeps the order of days: its correlations are the model's.
    """
    values, golden = made(source, "ours", "c", 20)
    expected = correlations(golden["mhat_c"].values)
    assert np.abs(correlations(values) - expected).max() < 0.07
    assert np.abs(correlations(sample(source).historical) - expected).max() > 0.2
