"""Interpolation weights between grids on the sphere, computed as ESMF computes them, without ESMF.

Everything is done with unit vectors, so that longitude conventions and the date line need no care. A source cell is the
quadrilateral between four neighbouring grid points; its edges are great circles. The source is never periodic: there is
no cell between the last and the first longitude, and none over a pole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]

# In cell coordinates (0 to 1): a target this far outside a cell still belongs to it, or targets on an edge get lost.
EDGE_TOLERANCE = 1e-8
# ESMF stores all four weights of a cell, also those that are zero, and a stored zero spreads a NaN. A true zero
# would be dropped from the product of two matrices, this does not change any sum.
SMALLEST_WEIGHT = 1e-30
_NEWTON_STEPS = 20
_NEAREST_CELLS = 4


def unit_vectors(lat: Floats, lon: Floats) -> Floats:
    """Return the Cartesian coordinates of points in degrees, along a new last axis."""
    up, along = np.deg2rad(lat), np.deg2rad(lon)
    return np.stack([np.cos(up) * np.cos(along), np.cos(up) * np.sin(along), np.sin(up)], axis=-1)


def edges_of(centres: Floats) -> Floats:
    """Return the edges (n + 1) of a row of cells: half-way between centres, and as far beyond the outermost."""
    padded = np.pad(centres, 1, mode="reflect", reflect_type="odd")
    edges: Floats = (padded[:-1] + padded[1:]) / 2
    return edges


def cell_corners(centres: Floats) -> Floats:
    """Return the corners (y + 1, x + 1, 3) of cells with these centres (y, x, 3); their lengths mean nothing.

    A corner lies in the middle of four centres; beyond the outermost, centres are extrapolated.
    """
    padded = np.pad(centres, ((1, 1), (1, 1), (0, 0)), mode="reflect", reflect_type="odd")
    corners: Floats = padded[1:, 1:] + padded[1:, :-1] + padded[:-1, 1:] + padded[:-1, :-1]
    return corners


@dataclass(frozen=True, eq=False)
class Grid:
    """Points on the sphere, in degrees.

    ``layout`` is "points" (lat and lon of one shape, no neighbours), "rectilinear" (1-D monotonic lat and lon, whose
    outer product is the grid) or "curvilinear" (2-D lat and lon of one shape). Points are numbered in C order.
    ``bounds`` are those of the cells in latitude and longitude, if they are known: of a rectilinear grid (rows, 2) and
    (columns, 2), of a curvilinear one the cells' corners, (y, x, 4) each.
    """

    lat: Floats
    lon: Floats
    layout: str
    bounds: tuple[Floats, Floats] | None = field(default=None, kw_only=True)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a field on this grid."""
        return (self.lat.size, self.lon.size) if self.layout == "rectilinear" else self.lat.shape

    @property
    def size(self) -> int:
        """Number of points."""
        return int(np.prod(self.shape))

    def coordinates(self) -> tuple[Floats, Floats]:
        """Latitude and longitude of every point, both of the grid's shape."""
        if self.layout != "rectilinear":
            return self.lat, self.lon
        lat, lon = np.meshgrid(self.lat, self.lon, indexing="ij")
        return lat, lon

    def unit_vectors(self) -> Floats:
        """Cartesian coordinates of every point, (size, 3)."""
        return unit_vectors(*self.coordinates()).reshape(-1, 3)

    def with_square_cells(self) -> Grid:
        """The grid, whose cells are squares if it has a single row or column, and so no widths of its own."""
        if self.layout != "rectilinear" or self.bounds is not None or min(self.shape) > 1:
            return self
        axes = zip((self.lat, np.unwrap(self.lon, period=360)), self.largest_steps(), strict=True)
        edges = [edges_of(axis) if axis.size > 1 else axis + np.array([-step, step]) / 2 for axis, step in axes]
        lat, lon = (np.stack([edge[:-1], edge[1:]], axis=1) for edge in edges)
        return replace(self, bounds=(lat, lon))

    def largest_steps(self) -> tuple[float, float]:
        """Largest steps between neighbours in latitude and longitude, in degrees.

        A single row or column has the other axis' step, and a single point one degree. A curvilinear grid has one for
        both: degrees of a great circle; it has 2 points each way.
        """
        if self.layout == "rectilinear":
            axes = (self.lat, np.unwrap(self.lon, period=360))
            steps = [float(np.abs(np.diff(axis)).max(initial=0)) for axis in axes]
            return steps[0] or steps[1] or 1.0, steps[1] or steps[0] or 1.0
        step = float(np.rad2deg(2 * np.arcsin(_longest_chord(self) / 2)))
        return step, step


@dataclass(frozen=True)
class Extrapolation:
    """Weights 1 / distance**exponent of the ``num_points`` nearest source points."""

    exponent: float = 2.0
    num_points: int = 8


def weights_and_outside(
    source: Grid, target: Grid, extrapolation: Extrapolation | None, used: NDArray[np.bool_] | None = None
) -> tuple[sparse.csr_matrix, NDArray[np.bool_]]:
    """Return the matrix (target points, source points) of ESMF's bilinear weights, and which targets lie outside.

    Targets outside all source cells are extrapolated, or, without an extrapolation, are given a NaN weight, so that
    they and all that is made from them become NaN. Only source points where `used` (None: all) take part. As in ESMF,
    all four corners of a cell must be used for the cell to hold a target.
    """
    points = target.unit_vectors()
    inside, corners, weights = bilinear_weights(source, target.coordinates(), points)
    if used is not None:
        inside &= used[corners].all(axis=1)
    outside = ~inside
    rows = [np.repeat(np.flatnonzero(inside), 4)]
    columns, values = [corners[inside].ravel()], [weights[inside].ravel()]
    if outside.any():
        nearest, share = outside_weights(source, points[outside], extrapolation, used)
        rows.append(np.repeat(np.flatnonzero(outside), nearest.shape[1]))
        columns.append(nearest.ravel())
        values.append(share.ravel())
    data = np.concatenate(values)
    # An exact hit of the extrapolation takes the value of that point alone; bilinear zeros have become tiny above.
    kept = data != 0
    index = (np.concatenate(rows)[kept], np.concatenate(columns)[kept])
    return sparse.coo_matrix((data[kept], index), shape=(target.size, source.size)).tocsr(), outside


def cells_away(source: Grid, target: Grid) -> Floats:
    """How far each target is from the nearest source point, in steps of the source's grid; it has 2 points each way.

    Inside of the grid that is at most half a diagonal of a cell, 0.71. The step is the largest between neighbours.
    """
    distance, _ = _tree(source.unit_vectors()).query(target.unit_vectors())
    return distance / _longest_chord(source)


def _longest_chord(grid: Grid) -> float:
    vectors = grid.unit_vectors().reshape(*grid.shape, 3)
    return float(max(np.linalg.norm(np.diff(vectors, axis=axis), axis=-1).max() for axis in (0, 1)))


def outside_weights(
    source: Grid, points: Floats, extrapolation: Extrapolation | None, used: NDArray[np.bool_] | None
) -> tuple[Integers, Floats]:
    """Indices of the `used` source points that points are extrapolated from, and their weights: NaN without a way."""
    if extrapolation is None:
        return np.zeros((len(points), 1), dtype=np.intp), np.full((len(points), 1), np.nan)
    if used is None:
        return inverse_distance_weights(source.unit_vectors(), points, extrapolation)
    nearest, share = inverse_distance_weights(source.unit_vectors()[used], points, extrapolation)
    return np.flatnonzero(used)[nearest], share


def _tree(points: Floats) -> cKDTree:
    # Imported here: all jobs import this module, and few of them regrid.
    from scipy.spatial import cKDTree

    return cKDTree(points)


def inverse_distance_weights(source: Floats, points: Floats, how: Extrapolation) -> tuple[Integers, Floats]:
    """Indices of the nearest source points by chord distance and their normalised weights, both (points, nearest)."""
    count = min(how.num_points, len(source))
    distance, nearest = _tree(source).query(points, k=np.arange(1, count + 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = distance**-how.exponent
        weights /= weights.sum(axis=1, keepdims=True)
    hit = distance[:, 0] == 0
    weights[hit] = np.arange(count) == 0
    return nearest.astype(np.intp), weights


def bilinear_weights(
    source: Grid, coordinates: tuple[Floats, Floats], points: Floats
) -> tuple[NDArray[np.bool_], Integers, Floats]:
    """For each target: whether a source cell holds it, that cell's four points, (n, 4), and their weights, (n, 4)."""
    vectors = source.unit_vectors()
    if source.layout == "rectilinear":
        corners = _corners(_rectilinear_cells(source, *coordinates), source.shape)
        inside, weights = weights_in_cells(vectors[corners], points)
        return inside, corners, weights
    return _search_curvilinear(source, vectors, points)


def _corners(cells: Integers, shape: tuple[int, ...]) -> Integers:
    """Point numbers around each cell, in the order (0, 0), (1, 0), (1, 1), (0, 1) of (column, row)."""
    row, column = np.divmod(cells, shape[1] - 1)
    first = row * shape[1] + column
    return np.stack([first, first + 1, first + 1 + shape[1], first + shape[1]], axis=-1)


def _rectilinear_cells(source: Grid, lat: Floats, lon: Floats) -> Integers:
    """The only cell that can hold each target; targets outside get a cell at the border.

    A row's edge between two meridians is the great circle tan(lat) = tan(row) cos(lon - middle) / cos(width / 2), so
    a target is moved along its meridian by the inverse of this before it is compared with the rows.
    """
    axis = np.unwrap(source.lon, period=360)
    sign = 1.0 if axis[-1] > axis[0] else -1.0
    east, first = sign * axis, sign * axis[0]
    slack = 360 * EDGE_TOLERANCE
    lon = (sign * lon.ravel() - first + slack) % 360 - slack + first
    column = _interval(east, lon)
    half_width = np.deg2rad(east[column + 1] - east[column]) / 2
    from_middle = np.deg2rad(lon - east[column]) - half_width
    with np.errstate(divide="ignore"):
        bulge = np.cos(half_width) / np.cos(from_middle)
    row_lat = np.rad2deg(np.arctan(np.tan(np.deg2rad(lat.ravel())) * bulge))
    sign = 1.0 if source.lat[-1] > source.lat[0] else -1.0
    row = _interval(sign * source.lat, sign * row_lat)
    return row * (source.lon.size - 1) + column


def _interval(axis: Floats, values: Floats) -> Integers:
    """Number of the interval of an ascending axis; of two that share a point the first, as in ESMF."""
    interval = np.searchsorted(axis, values - EDGE_TOLERANCE, side="left") - 1
    return np.clip(interval, 0, axis.size - 2)


def _search_curvilinear(source: Grid, vectors: Floats, points: Floats) -> tuple[NDArray[np.bool_], Integers, Floats]:
    corners = _corners(np.arange((source.shape[0] - 1) * (source.shape[1] - 1)), source.shape)
    middle = vectors[corners].mean(axis=1)
    middle /= np.linalg.norm(middle, axis=-1, keepdims=True)
    radius = np.linalg.norm(vectors[corners] - middle[:, None], axis=-1).max(axis=1) * (1 + 1e-6)
    inside = np.zeros(len(points), dtype=bool)
    cell = np.zeros(len(points), dtype=np.intp)
    weights = np.zeros((len(points), 4))
    for which, candidate in _candidates(_tree(middle), radius, points, inside):
        holds, value = weights_in_cells(vectors[corners[candidate]], points[which])
        # Backwards, so that the first of several cells that hold the same target wins.
        hit = np.flatnonzero(holds)[::-1]
        inside[which[hit]], cell[which[hit]], weights[which[hit]] = True, candidate[hit], value[hit]
    return inside, corners[cell], weights


def _candidates(
    tree: cKDTree, radius: Floats, points: Floats, inside: NDArray[np.bool_]
) -> Iterator[tuple[Integers, Integers]]:
    """Pairs (target, cell) to try: first the nearest cells, then, for targets not yet ``inside``, all in reach."""
    count = min(_NEAREST_CELLS, len(radius))
    distance, nearest = tree.query(points, k=np.arange(1, count + 1))
    for rank in range(count):
        which = np.flatnonzero(~inside & (distance[:, rank] <= radius[nearest[:, rank]]))
        yield which, nearest[which, rank]
    left = np.flatnonzero(~inside & (distance[:, 0] <= radius.max()))
    for part in np.array_split(left, len(left) // 1000 + 1):
        around = tree.query_ball_point(points[part], radius.max(), return_sorted=True)
        which = np.repeat(part, [len(cells) for cells in around])
        cells = np.concatenate([*map(np.asarray, around), []]).astype(np.intp)
        near = np.linalg.norm(tree.data[cells] - points[which], axis=-1) <= radius[cells]
        yield which[near], cells[near]


def weights_in_cells(corners: Floats, points: Floats) -> tuple[NDArray[np.bool_], Floats]:
    """Return whether each cell (n, 4, 3) holds its point (n, 3), and the weights (n, 4) of its corners A, B, C, D.

    Newton's method for A(1-r)(1-s) + B r(1-s) + C r s + D(1-r)s = t p, from (0.5, 0.5, 1).
    """
    # In the form A + r e + s f + r s g.
    a, e, f = corners[:, 0], corners[:, 1] - corners[:, 0], corners[:, 3] - corners[:, 0]
    g = corners[:, 2] - corners[:, 1] - f
    r, s, t = np.full(len(points), 0.5), np.full(len(points), 0.5), np.ones(len(points))
    with np.errstate(all="ignore"):
        for _ in range(_NEWTON_STEPS):
            step = _newton_step((a, e, f, g), points, (r, s, t))
            r, s, t = r - step[0], s - step[1], t - step[2]
            size = np.maximum(np.abs(step[0]), np.abs(step[1]))
            # The comparison is false for NaN: the iteration ends although a cell cannot be solved.
            if not (size > 1e-13).any():
                break
        inside = (size < 1e-9) & (t > 0)
        for coordinate in (r, s):
            inside &= (coordinate >= -EDGE_TOLERANCE) & (coordinate <= 1 + EDGE_TOLERANCE)
    r, s = np.clip(r, 0, 1), np.clip(s, 0, 1)
    weights = np.stack([(1 - r) * (1 - s), r * (1 - s), r * s, (1 - r) * s], axis=-1)
    return inside, np.maximum(weights, SMALLEST_WEIGHT)


def _newton_step(
    cell: tuple[Floats, Floats, Floats, Floats], points: Floats, at: tuple[Floats, Floats, Floats]
) -> tuple[Floats, Floats, Floats]:
    """Solve the 3 × 3 system of a Newton step for all pairs at once, by Cramer's rule."""
    a, e, f, g = cell
    r, s, t = (values[:, None] for values in at)
    residual = a + r * e + s * f + r * s * g - t * points
    along_r, along_s = e + s * g, f + r * g
    normal = np.cross(along_s, -points)
    determinant = _dot(along_r, normal)
    across = np.cross(along_r, residual)
    return (
        _dot(residual, normal) / determinant,
        _dot(across, -points) / determinant,
        _dot(np.cross(along_r, along_s), residual) / determinant,
    )


def _dot(left: Floats, right: Floats) -> Floats:
    return np.einsum("ij,ij->i", left, right)
