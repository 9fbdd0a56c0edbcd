"""The explorer's page with made-up data: small, deterministic, by the contract of the data files."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import espo_luigi

APP = Path(espo_luigi.__file__).parent / "explorer/app"
MISSING = -32768
PARTS = ["year", "DJF", "JJA"]
ALONG = ["2021-2050", "2041-2070", "2071-2100"]
STATISTICS = ["p10", "p50", "p90"]
SCENARIOS = {"ssp245": "SSP2-4.5", "ssp585": "SSP5-8.5"}
YEARS = list(range(1991, 2101))
MEMBERS = 5
RED_BLUE = ["#053061", "#2166ac", "#4393c3", "#92c5de", "#f7f7f7", "#f4a582", "#d6604d", "#b2182b", "#67001f"]
BROWN_GREEN = ["#543005", "#8c510a", "#bf812d", "#dfc27d", "#f5f5f5", "#80cdc1", "#35978f", "#01665e", "#003c30"]
YELLOW_RED = ["#ffffcc", "#ffeda0", "#fed976", "#feb24c", "#fd8d3c", "#fc4e2a", "#e31a1c", "#bd0026", "#800026"]
HOSTILE = '<img src=x onerror="window.hostile = 1">\u202e=1+1'


def packed(values: np.ndarray, scale: float = 0.01, offset: float = 0.0) -> dict[str, Any]:
    """Pack an array into 16-bit integers; NaN becomes the missing value."""
    whole = np.where(np.isnan(values), MISSING, np.round((values - offset) / scale)).astype("<i2")
    return {"shape": list(values.shape), "scale": scale, "offset": offset, "data": _text(whole)}


def write_page(folder: Path, files: dict[str, Any]) -> str:
    """Write explore.html with data files into a folder, and return the page's URL."""
    shutil.copytree(APP, folder / "explore/app")
    shutil.move(folder / "explore/app/explore.html", folder / "explore.html")
    for key, value in files.items():
        path = folder / f"explore/data/{key}.js"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(value).replace("<", "\\u003c")
        path.write_text(f"espo.add({json.dumps(key)}, {text});\n", "utf-8")
    return (folder / "explore.html").as_uri()


def changes(shape: tuple[int, int]) -> np.ndarray:
    """Return changes (along, part, statistic, y, x) that differ from cell to cell; the first cell has none."""
    a, p, s, j, i = np.meshgrid(
        *(np.arange(size) for size in (len(ALONG), len(PARTS), len(STATISTICS), *shape)), indexing="ij"
    )
    y, x = j / shape[0], i / shape[1]
    waves = 0.6 * np.sin(7 * x + 3 * y) + 0.4 * np.cos(9 * y - 4 * x)
    values = np.round((a + 1) * (0.6 + 1.1 * y + 0.25 * waves) + 0.3 * p + 0.7 * (s - 1) * (a + 1) / 2 - 0.4, 2)
    values[..., 0, 0] = np.nan
    return values


def plume(places: int, start: int = 0) -> dict[str, Any]:
    """Return the series of some places: of each scenario, members, and a reference until 2020."""
    noise = np.random.default_rng(7 + start)
    years = np.asarray(YEARS, "f8")
    scenarios = {}
    for number, scenario in enumerate(SCENARIOS):
        trend = np.clip(years - 2005, 0, None) * (0.02 + 0.03 * number)
        shape = (MEMBERS, places, len(PARTS), len(YEARS))
        spread = 1 + 0.2 * (np.arange(MEMBERS)[:, None, None, None] - 2)
        members = np.round(5 + trend * spread + noise.normal(0, 0.5, shape), 2)
        low, median, high = np.round(np.percentile(members, [10, 50, 90], axis=0), 2)
        names = [f"CMIP6_MODEL-{one}" for one in range(MEMBERS)]
        one = {"low": packed(low), "median": packed(median), "high": packed(high), "members": packed(members)}
        scenarios[scenario] = {**one, "names": names}
    reference = 5 + noise.normal(0, 0.5, (places, len(PARTS), len(YEARS)))
    reference[..., years > 2020] = np.nan
    return {
        "years": YEARS,
        "parts": PARTS,
        "bounds": STATISTICS,
        "scenarios": scenarios,
        "reference": packed(reference),
    }


def ensemble(shape: tuple[int, int] = (100, 100)) -> dict[str, Any]:
    """Return the data files of an ensemble over a regular grid, with regions, stations, flags and lines."""
    ny, nx = shape
    robust = np.ones((len(ALONG), len(PARTS), *shape), "u1")
    robust[:, :, : ny // 4, : nx // 3] = 2
    robust[:, :, : ny // 8, nx // 2 :] = 3
    unusable = np.zeros(shape, "u1")
    unusable[ny // 2 : ny // 2 + 5, nx // 2 : nx // 2 + 5] = 1
    values = changes(shape)
    limits = [-8, 8]
    maps, files = [], {}
    for indicator, of, scenarios in (
        ("tg_mean_YS", "change", [*SCENARIOS, "levels"]),
        ("tg_mean_YS", "value", list(SCENARIOS)),
        ("prcptot_YS", "change", list(SCENARIOS)),
    ):
        for scenario in scenarios:
            key = f"maps/{len(maps)}"
            shown = values * (2 if scenario == "ssp585" else 1) + (8 if of == "value" else 0)
            shown = np.round(-4 * values, 2) if indicator == "prcptot_YS" else shown
            entry = {"key": key, "indicator": indicator, "scenario": scenario, "of": of, "members": MEMBERS}
            along = ["+1.5 K", "+2 K", "+3 K"] if scenario == "levels" else ALONG
            entry |= {"baseline": "1991-2020" if of == "change" else None, "along": along, "parts": PARTS}
            entry |= {"statistics": STATISTICS, "bytes": 2 * values.size}
            entry["limits"] = [6, 16] if of == "value" else [-20, 20] if indicator == "prcptot_YS" else limits
            maps.append(entry)
            files[key] = {"values": packed(shown), "robust": _text(robust) if of == "change" else None}
    rows, columns = 10, 10
    for row in range(ny // rows):
        for column in range(nx // columns):
            if (row, column) not in TILES:
                continue
            cells = [[row * rows + j, column * columns + i] for j in range(rows) for i in range(columns)]
            files[f"plumes/tas/{row}_{column}"] = {"cells": cells, **plume(len(cells), row * 10 + column)}
    tiles = {"rows": rows, "columns": columns, "key": "plumes/tas/"}
    lat, lon = np.linspace(42, 62, ny + 1), np.linspace(-80, -56, nx + 1)
    regions = [
        {"id": "south", "name": "South shore", "lines": [[[-74, 45], [-66, 45], [-66, 48], [-74, 48], [-74, 45]]]},
        {"id": "odd", "name": HOSTILE, "lines": [[[-76, 55], [-70, 55], [-70, 58], [-76, 58], [-76, 55]]]},
    ]
    stations = [{"id": "7025251", "name": "Airport", "lon": -73.74, "lat": 45.47}]
    files["plumes/tas/regions"] = {"ids": ["south", "odd"], **plume(2)}
    files["plumes/tas/stations"] = {"ids": ["7025251"], **plume(1)}
    files["lines"] = LINES
    files["flags"] = {"unusable": _text(unusable)}
    files["index"] = {
        "format": 1,
        "title": f"Climate scenarios {HOSTILE}",
        "domain": "qc",
        "reference": "ERA5-Land",
        "sign": None,
        "grid": {"shape": [ny, nx], "lat_edges": lat.tolist(), "lon_edges": lon.tolist()},
        "indicators": [
            {
                "id": "tg_mean_YS",
                "name": "Mean temperature",
                "units": "°C",
                "change": {"units": "K", "kind": "difference"},
                "colours": {"value": YELLOW_RED, "change": RED_BLUE},
                "file": "netcdf/tg_mean_YS.nc",
            },
            {
                "id": "prcptot_YS",
                "name": HOSTILE,
                "units": "mm",
                "change": {"units": "%", "kind": "per cent"},
                "colours": {"value": YELLOW_RED, "change": BROWN_GREEN},
                "file": "javascript:alert(1)",
            },
        ],
        "scenarios": [
            *({"id": one, "name": name, "levels": False} for one, name in SCENARIOS.items()),
            {"id": "levels", "name": "Levels of global warming", "levels": True},
        ],
        "maps": maps,
        "plumes": {
            "tg_mean_YS": {"tiles": tiles, "regions": "plumes/tas/regions", "stations": "plumes/tas/stations"},
            "prcptot_YS": {"tiles": tiles, "regions": None, "stations": None},
        },
        "regions": regions,
        "stations": stations,
        "flags": True,
        "limit": None,
    }
    return files


# The tiles that are made: the others are missing.
TILES = {(5, 5), (2, 7), (0, 0)}
LINES = {
    "coast": [
        [
            [-80, 51.5],
            [-79, 54.5],
            [-77.5, 56.5],
            [-78, 58.6],
            [-77.4, 60],
            [-78, 62],
            [-74, 62],
            [-71, 61],
            [-69.5, 59],
        ],
        [[-69.5, 59], [-67, 58.5], [-65, 60], [-64, 59.5], [-62, 57], [-60, 55], [-57, 53], [-58, 51.5], [-64, 50.2]],
        [[-64, 50.2], [-67, 49.3], [-70, 47], [-68, 48.6], [-65, 49.2], [-64.5, 48.4], [-66, 47.8], [-64.8, 46]],
    ],
    "borders": [[[-79.5, 47], [-79.5, 51.5]], [[-74.7, 45], [-71.5, 45], [-70.4, 46], [-69.2, 47.4], [-68.3, 47.3]]],
    "lakes": [[[-75, 51], [-73.5, 51.3], [-73.5, 50.5], [-74.4, 50.4], [-75, 51]]],
}


def _text(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()
