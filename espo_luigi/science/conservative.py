"""First-order conservative weights: the areas that cells of two grids share on the sphere.

Cells of 1-D latitudes and longitudes lie between parallels and meridians, as in CDO's `remapcon`; ESMF has great
circles in place of parallels. Cells of 2-D latitudes and longitudes are quadrilaterals between great circles. Two grids
of the first kind share rectangles on (longitude, sine of latitude), which are exact. Otherwise a parallel is a chain of
great circles of up to 0.1 degrees, which changes areas by some 3e-7, and polygons are clipped (Sutherland and Hodgman).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from espo_luigi.errors import DataError
from espo_luigi.science.sphere import Floats, Grid, Integers, cell_corners, edges_of, unit_vectors, weights_in_cells

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

# Degrees of a parallel that a great circle may stand for, and how many stand for a side of a small cell at least.
_PIECE_DEGREES, _FEWEST_PIECES = 0.1, 2
# The part of the smaller cell below which a shared area is round-off.
_NO_AREA = 1e-10
# The part of a cell, or the degrees, by which bounds of neighbours may differ: files may be float32, or have decimals.
_SAME_EDGE, _SAME_EDGE_DEGREES = 1e-2, 2e-3
# The part of the way to the next centre by which bounds may be off the middle: rows may differ in width.
_OFF_MIDDLE = 0.25
# How much more than once cells may be covered by round-off.
_MORE_THAN_ONCE = 1e-6
# Polygons that are clipped at once, and cells whose neighbours are looked for at once.
_POLYGONS, _CELLS = 20_000, 20_000


@dataclass(frozen=True, eq=False)
class Boxes:
    """Cells of a grid of rows and columns: bounds in degrees, (rows, 2) from south to north, (columns, 2) eastwards."""

    lat: Floats
    lon: Floats

    @property
    def size(self) -> int:
        """Number of cells."""
        return len(self.lat) * len(self.lon)

    def areas(self) -> Floats:
        """Area of each cell, in C order, on the unit sphere."""
        heights, widths = np.diff(np.sin(np.deg2rad(self.lat)), axis=1), np.deg2rad(np.diff(self.lon, axis=1))
        return (heights * widths.T).ravel()

    def polygons(self, places: Integers) -> Floats:
        """Unit vectors (place, vertex, 3) of cells, whose parallels are chains of great circles."""
        row, column = np.divmod(places, len(self.lon))
        pieces = max(_FEWEST_PIECES, int(np.ceil(np.diff(self.lon, axis=1).max() / _PIECE_DEGREES - 1e-6)))
        (west, east), (south, north) = self.lon[column].T[..., None], self.lat[row].T[..., None]
        along = west + (east - west) * np.linspace(0, 1, pieces + 1)
        lat = np.concatenate([np.broadcast_to(bound, along.shape) for bound in (south, north)], axis=1)
        return unit_vectors(lat, np.concatenate([along, along[:, ::-1]], axis=1))


@dataclass(frozen=True, eq=False)
class Quadrilaterals:
    """Cells between great circles: unit vectors (cell, 4, 3) of their corners, in order; NaN: a cell to leave out."""

    corners: Floats

    @property
    def size(self) -> int:
        """Number of cells."""
        return len(self.corners)

    def areas(self) -> Floats:
        """Area of each cell on the unit sphere."""
        return np.abs(_area(self.corners))

    def polygons(self, places: Integers) -> Floats:
        """Unit vectors (place, 4, 3) of cells."""
        return self.corners[places]


Cells = Boxes | Quadrilaterals


def cells_of(grid: Grid) -> Cells:
    """Return the cells of a grid: between its bounds if it has any, or else half-way between its points.

    Rows whose next neighbour would lie beyond a pole end at the pole. Columns that repeat the first ones, 360 degrees
    on, have no area. Raises `DataError` if bounds do not hold their centres about half-way to the next centres, do not
    meet their neighbours' or are in mixed orders, or a curvilinear grid of one row or column has none.
    """
    if grid.layout == "rectilinear":
        return _boxes(grid)
    if grid.bounds is not None:
        corners = unit_vectors(*grid.bounds)
        _check_corners(grid, corners)
        return Quadrilaterals(corners.reshape(-1, 4, 3))
    if min(grid.shape) < 2:
        raise DataError(
            f"the grid has {' x '.join(map(str, grid.shape))} cells; expected two rows and columns at least."
        )
    corners = cell_corners(unit_vectors(grid.lat, grid.lon))
    corners /= np.linalg.norm(corners, axis=-1, keepdims=True)
    around_each = (corners[:-1, :-1], corners[:-1, 1:], corners[1:, 1:], corners[1:, :-1])
    return Quadrilaterals(np.stack(around_each, axis=2).reshape(-1, 4, 3))


def _boxes(grid: Grid) -> Boxes:
    centres = grid.lat, np.unwrap(grid.lon, period=360)
    lat, lon = grid.bounds or map(_between, centres)
    # Bounds may count longitudes otherwise than centres do.
    lon = centres[1][:, None] + (lon - centres[1][:, None] + 180) % 360 - 180
    given = np.clip(lat, -90, 90), lon
    lat, lon = (np.sort(values, axis=1) for values in given)
    if grid.bounds is None:
        for place, neighbour in ((0, 1), (-1, -2)):
            end = grid.lat[place]
            if abs(2 * end - grid.lat[neighbour]) > 90 + 1e-6:
                lat[place, int(end > 0)] = np.copysign(90, end)
    repeats = np.abs(centres[1] - centres[1][0]) > 360 - (lon[:, 1] - lon[:, 0]) / 2
    if grid.bounds is not None:
        _check_bounds("latitude", grid.lat, given[0], np.inf)
        _check_bounds("longitude", centres[1][~repeats], given[1][~repeats], 360.0)
    lon[~repeats], lon[repeats, 1] = _joined(lon[~repeats]), lon[repeats, 0]
    return Boxes(_joined(lat), lon)


def _check_bounds(name: str, centres: Floats, bounds: Floats, period: float) -> None:
    """Raise `DataError` unless bounds (point, 2) hold their centres, meet their neighbours' and are in one order."""
    if centres.size < 2:
        return
    order = np.argsort(centres)
    centre, (first, second) = centres[order], bounds[order].T
    steps, seam = np.diff(centre), centre[0] + period - centre[-1]
    # A globe's last column has the first as its neighbour. The outermost cells of others end at a pole, or anywhere.
    closed = seam < 1.5 * steps.max()
    steps = np.concatenate([[seam], steps, [seam]]) if closed else np.pad(steps, 1, mode="edge")
    least, most = np.full((2, steps.size), [[_OFF_MIDDLE], [1 - _OFF_MIDDLE]])
    if not closed:
        least[[0, -1]], most[[0, -1]] = -_SAME_EDGE, 1 + _SAME_EDGE
    low, high = np.minimum(first, second), np.maximum(first, second)
    below, above = (centre - low) / steps[:-1], (high - centre) / steps[1:]
    right = (least[:-1] <= below) & (below <= most[:-1]) & (least[1:] <= above) & (above <= most[1:])
    beyond = np.append(low[1:], low[0] + period if closed else high[-1])
    right &= _is_same_edge(low, high, beyond) & ((second > first) == (second > first)[0])
    if not right.all():
        place = int(right.argmin())
        expected = centre[place] + np.array([-steps[place], steps[place + 1]]) / 2
        raise DataError(
            f"the bounds of {name} make no cells: {int((~right).sum())} of {right.size} are wrong, those of "
            f"{centre[place]:g} (number {order[place] + 1}) are {first[place]:g} and {second[place]:g}, and its "
            f"neighbour begins at {beyond[place]:g}; expected about {expected[0]:g} and {expected[1]:g}. Bounds hold "
            "their centre, meet their neighbours', and are all in one order"
        )


def _check_corners(grid: Grid, corners: Floats) -> None:
    """Raise `DataError` unless corners (y, x, 4, 3) surround their centres, and neighbours share two of them."""
    known, wrong = np.isfinite(corners).all(axis=(2, 3)), np.zeros(grid.shape, bool)
    inside, weights = weights_in_cells(corners[known], grid.unit_vectors()[known.ravel()])
    along = weights[:, [1, 3]] + weights[:, [2, 2]]
    wrong[known] = ~inside | (np.abs(along - 0.5).max(axis=1, initial=0) > _OFF_MIDDLE)
    wrong &= np.abs(grid.lat) < 90 - 1e-6  # a centre at the pole is a corner of its cell
    for axis in (0, 1):
        here, there = (np.moveaxis(corners, axis, 0)[part] for part in (slice(-1), slice(1, None)))
        apart = np.stack([np.linalg.norm(here - np.roll(there, turn, axis=-2), axis=-1) for turn in range(4)])
        shared = (apart <= _SAME_EDGE * np.linalg.norm(here[..., 0, :] - here[..., 2, :], axis=-1)[..., None]).sum(
            (0, -1)
        )
        np.moveaxis(wrong, axis, 0)[:-1] |= (shared < 2) & np.isfinite(apart).all((0, -1))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        assert grid.bounds is not None
        got = " and ".join(str(np.round(values[row, column], 4).tolist()) for values in grid.bounds)
        raise DataError(
            f"the corners of {int(wrong.sum())} of {wrong.size} cells are wrong: the cell in row {row + 1} and column "
            f"{column + 1}, at {grid.lat[row, column]:g} °N {grid.lon[row, column]:g} °E, has corners at {got}; "
            "expected four corners in order around the centre, two of them shared with each neighbour"
        )


def _is_same_edge(low: Floats, high: Floats, beyond: Floats) -> np.ndarray:
    """Whether cells from `low` to `high` end where their neighbours begin, but for round-off."""
    return np.abs(beyond - high) <= np.maximum(_SAME_EDGE * (high - low), _SAME_EDGE_DEGREES)


def _joined(bounds: Floats) -> Floats:
    """Bounds (point, 2) whose neighbours, also around the globe, share an edge: files have it with round-off."""
    order = np.argsort(bounds[:, 0])
    low, high = bounds[order].T
    turn = np.where(np.arange(low.size) + 1 < low.size, 0.0, 360.0)
    beyond = np.roll(low, -1) + turn
    edge = np.where(_is_same_edge(low, high, beyond), (beyond + high) / 2, high)
    shared = edge != high
    low = np.where(np.roll(shared, 1), np.roll(edge - turn, 1), low)
    made = np.empty_like(bounds)
    made[order] = np.stack([low, edge], axis=1)
    return made


def _between(values: Floats) -> Floats:
    """Bounds (point, 2) half-way between points, and as far beyond the outermost."""
    if values.size < 2:
        raise DataError(f"a cell has no width on a grid with a single row or column, at {values}; expected 2 or more")
    edges = edges_of(values)
    return np.stack([edges[:-1], edges[1:]], axis=1)


def conservative_weights(
    source: Cells,
    target: Cells,
    *,
    places: Integers | None = None,
    used: NDArray[np.bool_] | None = None,
    normed: bool = False,
) -> sparse.csr_matrix:
    """Return the matrix (target cells, source cells) of first-order conservative weights.

    A weight is the area that two cells share, over the target cell's area; with `normed`, over the part of the target
    cell that source cells cover. These are ESMF's normalisations "dstarea" and "fracarea". A target cell that shares
    nothing has a NaN weight. Without `normed`, the sum of a row is the part of the target cell that is covered. Raises
    `DataError` if cells of the source overlap.

    Parameters
    ----------
    places
        Numbers of the target's cells that are wanted, in C order; by default all.
    used
        Source cells that take part; by default all.
    """
    places = np.arange(target.size) if places is None else places
    shared, areas = _shared(source, target, places)
    entries = shared.tocoo()
    least = _NO_AREA * np.minimum(areas[entries.row], source.areas()[entries.col])
    kept = (entries.data > least) & (True if used is None else used[entries.col])
    row, column, area = entries.row[kept], entries.col[kept], entries.data[kept]
    covered = np.bincount(row, weights=area, minlength=places.size)
    over = covered > areas * (1 + _MORE_THAN_ONCE)
    if (covered > areas * (1 + _SAME_EDGE)).any():
        raise DataError(
            f"{int(over.sum())} of {places.size} cells of the target are covered more than once by the source's cells, "
            f"up to {(covered / areas).max():.3g} times; expected once. Cells of the source overlap: correct its "
            "bounds, regrid it bilinearly, or exclude it."
        )
    # Corners that neighbours share may differ by float32's round-off.
    share = area / (covered if normed else np.where(over, covered, areas))[row]
    none = np.flatnonzero(covered == 0)
    index = (np.concatenate([row, none]), np.concatenate([column, np.zeros_like(none)]))
    data = np.concatenate([share, np.full(none.size, np.nan)])
    return sparse.coo_matrix((data, index), shape=shared.shape).tocsr()


def _shared(source: Cells, target: Cells, places: Integers) -> tuple[sparse.csr_matrix, Floats]:
    """The areas that target cells share with source cells, and the target cells' own."""
    if isinstance(source, Boxes) and isinstance(target, Boxes):
        (rows, row), (columns, column) = (
            np.unique(numbers, return_inverse=True) for numbers in np.divmod(places, len(target.lon))
        )
        (south, north), (low, high) = (np.sin(np.deg2rad(lat)).T for lat in (source.lat, target.lat[rows]))
        heights = np.maximum(np.minimum(high[:, None], north) - np.maximum(low[:, None], south), 0)
        widths = _shared_widths(source.lon, target.lon[columns])
        whole = sparse.kron(sparse.csr_matrix(heights), sparse.csr_matrix(widths), format="csr")
        return whole[row * columns.size + column], target.areas()[places]
    if isinstance(source, Boxes):
        assert isinstance(target, Quadrilaterals)
        wanted = Quadrilaterals(target.corners[places])
        return _shared_polygons(source, np.arange(source.size), wanted).T.tocsr(), wanted.areas()
    areas = np.concatenate([np.abs(_area(target.polygons(part))) for part in _parts(places)])
    return _shared_polygons(target, places, source), areas


def _shared_widths(source: Floats, target: Floats) -> Floats:
    """Radians of longitude that intervals (target, source) share, however they count longitudes."""
    width, wanted = np.diff(source, axis=1).T, np.diff(target, axis=1)
    ahead = (source[:, 0] - target[:, :1]) % 360
    # The source's interval begins within the target's, or it reaches around into the target's beginning.
    inside, around = np.minimum(wanted - ahead, width), np.minimum(wanted, ahead - 360 + width)
    return np.deg2rad(np.maximum(inside, 0) + np.maximum(around, 0))


def _parts(places: Integers) -> list[Integers]:
    return np.array_split(places, max(1, -(-places.size // _CELLS)))


def _shared_polygons(subject: Cells, places: Integers, clip: Quadrilaterals) -> sparse.csr_matrix:
    """The areas (places of the subject, cells of the clip) that polygons share with quadrilaterals."""
    from scipy.spatial import cKDTree

    known = np.flatnonzero(np.isfinite(clip.corners).all(axis=(1, 2)))
    corners = clip.corners[known]
    middle, radius = _circles(corners)
    tree, found = cKDTree(middle), []
    for first in range(0, max(1, places.size), _CELLS):
        polygons = subject.polygons(places[first : first + _CELLS])
        which, cell = _neighbours(tree, radius, polygons)
        area = np.zeros(which.size)
        for begin in range(0, which.size, _POLYGONS):
            some = slice(begin, begin + _POLYGONS)
            area[some] = _shared_area(polygons[which[some]], corners[cell[some]])
        found.append((first + which, known[cell], area))
    row, column, data = (np.concatenate(values) for values in zip(*found, strict=True))
    return sparse.coo_matrix((data, (row, column)), shape=(places.size, clip.size)).tocsr()


def _circles(polygons: Floats) -> tuple[Floats, Floats]:
    """Middles of polygons, and the greatest distances (chords) of a vertex."""
    middle = polygons.mean(axis=1)
    middle /= np.linalg.norm(middle, axis=-1, keepdims=True)
    return middle, np.linalg.norm(polygons - middle[:, None], axis=-1).max(axis=1) * (1 + 1e-6)


def _neighbours(tree: cKDTree, radius: Floats, polygons: Floats) -> tuple[Integers, Integers]:
    """Pairs (polygon, cell of the tree) whose circles meet."""
    known: NDArray[np.bool_] = np.asarray(np.isfinite(polygons).all(axis=(1, 2)))
    middle, reach = _circles(np.where(known[:, None, None], polygons, 1.0))
    near = tree.query_ball_point(middle, reach + radius.max())
    which = np.repeat(np.arange(len(polygons)), [len(cells) for cells in near])
    cell = np.fromiter(itertools.chain.from_iterable(near), dtype=np.intp, count=which.size)
    meets = np.linalg.norm(tree.data[cell] - middle[which], axis=-1) <= radius[cell] + reach[which]
    meets &= known[which]
    return which[meets], cell[meets]


def _shared_area(polygons: Floats, corners: Floats) -> Floats:
    """Area that each polygon (n, vertex, 3) shares with its quadrilateral (n, 4, 3), of two triangles with signs."""
    area = np.zeros(len(polygons))
    for triangle in (corners[:, [0, 1, 2]], corners[:, [0, 2, 3]]):
        sign = np.sign(_area(triangle))
        ordered = np.where((sign < 0)[:, None, None], triangle[:, ::-1], triangle)
        left, clipped = np.flatnonzero(sign), polygons[sign != 0]
        for edge in range(3):
            normal = np.cross(ordered[left, edge], ordered[left, (edge + 1) % 3])
            clipped, some = _clip(clipped, normal)
            left = left[some]
        area[left] += sign[left] * _area(clipped)
    return np.abs(area)


def _clip(polygons: Floats, normals: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """The parts of polygons on the side of a great circle that its normal points to, and which polygons have any.

    Polygons are padded with their last vertex to the same number of vertices.
    """
    height = np.einsum("nvk,nk->nv", polygons, normals)
    inside: NDArray[np.bool_] = np.asarray(height >= 0)
    crosses = inside != np.roll(inside, -1, axis=1)
    some: NDArray[np.bool_] = np.asarray(inside.any(axis=1))
    polygons, height, inside, crosses = polygons[some], height[some], inside[some], crosses[some]
    beyond = np.roll(height, -1, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(crosses, height / (height - beyond), 0)[..., None]
    cut = polygons + part * (np.roll(polygons, -1, axis=1) - polygons)
    cut /= np.linalg.norm(cut, axis=-1, keepdims=True)
    count, vertices = len(polygons), polygons.shape[1]
    slots = np.stack([polygons, cut], axis=2).reshape(count, 2 * vertices, 3)
    valid = np.stack([inside, crosses], axis=2).reshape(count, 2 * vertices)
    number = np.cumsum(valid, axis=1)
    longest = int(number[:, -1].max(initial=1))
    row, slot = np.nonzero(valid)
    order = np.zeros((count, longest), dtype=np.intp)
    order[row, number[row, slot] - 1] = slot
    padded = np.minimum(np.arange(longest), number[:, -1:] - 1)
    order = np.take_along_axis(order, padded, axis=1)
    return np.take_along_axis(slots, order[..., None], axis=1), some


def _area(polygons: Floats) -> Floats:
    """Area (n) of polygons (n, vertex, 3) on the unit sphere, with a sign: positive counterclockwise from outside.

    The excess of triangles, after Van Oosterom and Strackee, IEEE Trans. Biomed. Eng. 30 (1983), 125.
    """
    first = polygons[:, :1]
    b, c = polygons[:, 1:-1], polygons[:, 2:]
    triple = np.einsum("nvk,nvk->nv", np.broadcast_to(first, b.shape), np.cross(b - first, c - first))
    others = 1 + (first * b).sum(axis=-1) + (b * c).sum(axis=-1) + (c * first).sum(axis=-1)
    return 2 * np.arctan2(triple, others).sum(axis=1)
