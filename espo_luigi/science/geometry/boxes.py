"""Boxes of longitudes and latitudes: which box covers which, and how far it sticks out. Longitudes are modulo 360."""

from __future__ import annotations

import math
from typing import NamedTuple

Bounds = tuple[float, float]

# Bounds are decimal numbers in a file: nothing between two of them is narrower than this.
TOLERANCE = 1e-9


class Box(NamedTuple):
    """Degrees east (western, eastern bound) and degrees north (southern, northern bound)."""

    lon_bnds: Bounds
    lat_bnds: Bounds

    def __str__(self) -> str:
        (west, east), (south, north) = self
        return f"{south:g}..{north:g} degrees north, {west:g}..{east:g} degrees east"

    def widened(self, degrees_east: float, degrees_north: float) -> Box:
        """Return the box with each bound moved outwards; latitudes end at the poles."""
        (west, east), (south, north) = self
        return Box(
            (west - degrees_east, east + degrees_east),
            (max(south - degrees_north, -90), min(north + degrees_north, 90)),
        )


def missing_sides(inner: Box, outer: Box, tolerance: float = TOLERANCE) -> str:
    """Return by how much `inner` sticks out of `outer`, such as "2 degrees in the north"; "" if it is covered."""
    (west, east), (south, north) = _turned_towards(inner, outer)
    beyond = {
        "south": outer.lat_bnds[0] - south,
        "north": north - outer.lat_bnds[1],
        # A box around the whole Earth has no western and no eastern end.
        "west": 0.0 if _goes_around(outer) else outer.lon_bnds[0] - west,
        "east": 0.0 if _goes_around(outer) else east - outer.lon_bnds[1],
    }
    return " and ".join(f"{size:g} degrees in the {side}" for side, size in beyond.items() if size > tolerance)


def overlap(box: Box, other: Box) -> bool:
    """Whether two boxes have an area in common."""
    (west, east), (south, north) = _turned_towards(box, other)
    in_lat = min(north, other.lat_bnds[1]) - max(south, other.lat_bnds[0])
    in_lon = min(east, other.lon_bnds[1]) - max(west, other.lon_bnds[0])
    return in_lat > TOLERANCE and (in_lon > TOLERANCE or _goes_around(other))


def made_edges(first: float, last: float, step: float) -> tuple[float, int]:
    """Return the last edge and the number of the cells that xESMF's cf_grid_2d makes between two bounds.

    Whole steps from the first bound, past the last by half a step at most; see `espo_luigi.science.regrid`.
    """
    cells = math.ceil((last + step / 2 - first) / step) - 1
    return first + cells * step, cells


def _goes_around(box: Box) -> bool:
    return box.lon_bnds[1] - box.lon_bnds[0] >= 360 - TOLERANCE


def _turned_towards(box: Box, other: Box) -> Box:
    """Turn a box by whole turns, to where its longitudes have most in common with the other box."""
    turn = 360 * round((sum(other.lon_bnds) - sum(box.lon_bnds)) / 2 / 360)
    return Box((box.lon_bnds[0] + turn, box.lon_bnds[1] + turn), box.lat_bnds)
