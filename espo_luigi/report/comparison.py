"""Two finished productions compared: which products differ, by how much, where and why; and the page about it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import xarray as xr

from espo_luigi import store
from espo_luigi.catalog.files import first_line, is_zarr, open_netcdf
from espo_luigi.errors import StoreError
from espo_luigi.export.netcdf import from_cf_axes
from espo_luigi.methods.base import METHODS
from espo_luigi.publication.catalogue import row_of
from espo_luigi.publication.products import Product, find_products
from espo_luigi.report import maps as figures
from espo_luigi.report.drawings import Drawing, with_pictures
from espo_luigi.report.html import Section, Table, Text, render_page
from espo_luigi.report.maps import MOST_MAPS, share_maps
from espo_luigi.science.diagnose import differences
from espo_luigi.science.diagnose.differences import Difference
from espo_luigi.science.display import counted, units_text

# Of the products of one production alone, lines and page show so many.
_SHOWN = 10
_NOISE = {True: "more than noise", False: "within noise", None: "noise not told"}
# In the attribute of adjusted variables: an argument with which a method draws, or another method, which may draw.
_OTHER_METHOD = rf"(?:^|; )(?:\w+: )*(?!(?:{'|'.join(METHODS)})\()[\w.]+\("
_DRAWS = re.compile(rf"jitter|adapt_freq(?!_thresh=None)|{_OTHER_METHOD}")
_HEADS = ("Variable", "Season", "Values that differ [%]", "Largest", "Quantile 99.9 %", "Mean", "In one only", "Noise")


@dataclass(frozen=True)
class Comparison:
    """Differences of two productions by variable of a product, and reasons for them.

    `notes` say why a variable cannot be compared, or which days and cells are of A or B alone. `keys` of the
    configuration (and raw datasets) have other values, or are known of one only. `versions` are names of packages with
    the versions of A and of B.
    """

    only_in_a: Sequence[str]
    only_in_b: Sequence[str]
    keys: Sequence[str]
    versions: Sequence[Sequence[str]]
    notes: dict[str, list[str]] = field(default_factory=dict)
    differences: dict[str, list[Difference]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)

    @property
    def different(self) -> dict[str, list[Difference]]:
        """The seasons that differ of each variable that does, all year first."""
        rows = {name: [row for row in of if row.share or row.missing] for name, of in self.differences.items()}
        return {name: of for name, of in rows.items() if of}

    @property
    def is_equal(self) -> bool:
        """Whether both have the same products, days and cells, with the same values."""
        return not (self.only_in_a or self.only_in_b or self.notes or self.different)


def compare(a: Path, b: Path, tell: Callable[[str], object]) -> tuple[Comparison, dict[str, xr.Dataset]]:
    """Compare the products in two folders, or two archives; return maps of the first variables that differ, too.

    `tell` gets lines about the work. Raises `StoreError` if there is no product, or an archive is damaged.
    """
    if is_zarr(a.name) != is_zarr(b.name):
        raise StoreError(f"got {a} and {b}; expected two folders of finished products, or two archives")
    first, second = (_products(path) for path in (a, b))
    both = [name for name in first if name in second]
    keys, versions = set[str](), set[tuple[str, ...]]()
    for mine, theirs in ((first[name].marker, second[name].marker) for name in both):
        keys |= dict(mine.fingerprints.items() ^ theirs.fingerprints.items()).keys()
        packages = dict(mine.versions.items() ^ theirs.versions.items())
        versions |= {(name, *(marker.versions.get(name, "–") for marker in (mine, theirs))) for name in packages}
    alone = sorted(first.keys() - second.keys()), sorted(second.keys() - first.keys())
    found, maps = Comparison(*alone, sorted(keys), sorted(versions)), dict[str, xr.Dataset]()
    for number, name in enumerate(both, 1):
        tell(f"{number} of {len(both)}: {name}")
        try:
            of_a, of_b = (_opened(products[name])[name.split()[-1]] for products in (first, second))
            rows, fields, notes = differences.compare(of_a, of_b, _have_draws(of_a, of_b))
        except Exception as error:  # a chunk that cannot be read raises whatever its codec does
            found.notes[name] = [f"not compared: {first_line(error)}"]
            continue
        one = figures.shown_measure(xr.DataArray(1.0, attrs=of_a.attrs), figures.row_of(str(of_a.name)))
        times, found.units[name] = float(one), units_text(one.attrs.get("units", ""))
        found.differences[name] = [
            replace(row, largest=times * row.largest, q999=times * row.q999, mean=times * row.mean) for row in rows
        ]
        fields = fields.assign({of: times * fields[of] for of in ("largest", "mean")})
        if notes:
            found.notes[name] = notes
        if rows[0].share and fields["share"].ndim == 2 and len(maps) < MOST_MAPS:
            maps[name] = fields
    return found, maps


def _products(path: Path) -> dict[str, Product]:
    """Daily products by dataset, domain, level and variable; of an archive, by variable.

    Others, and several of the same data, are by their place.
    """
    found, is_archive = defaultdict[str, dict[str, Product]](dict), is_zarr(path.name)
    for archive in [path] if is_archive else path.rglob("[!.]*.zarr.zip"):
        if not store.is_complete(archive):
            store.open_store(archive)  # says what is wrong
    marker = store.read_marker(path) if is_archive else None
    for product in [Product(path.absolute(), marker)] if marker else find_products(path):
        row = row_of(product) if product.is_data else {}
        place = about = "" if is_archive else f"{product.below(path.absolute())} "
        if row.get("xrfreq") == "D" and not is_archive:
            about = "".join(f"{row.get(name)} " for name in ("id", "domain", "processing_level"))
        for var in _opened(product):
            found[f"{about}{var}"][f"{place}{var}"] = product
    if not found:
        expected = "a folder of finished products, or an archive; not the files that `espo export` has made"
        raise StoreError(f"{path} has no product: expected {expected}")
    return {name if len(of) == 1 else place: one for name, of in found.items() for place, one in of.items()}


def _opened(product: Product) -> xr.Dataset:
    """The variables of a store, or of the NetCDF file beside a table, that have numbers along a dimension."""
    if product.is_data:
        ds = store.open_store(product.path, cut=False)
    else:
        is_netcdf = product.path.suffix == ".nc"
        ds = from_cf_axes(open_netcdf(str(product.path), (), {"chunks": None})) if is_netcdf else xr.Dataset()
    return ds[[name for name, of in ds.data_vars.items() if of.ndim and of.dtype.kind in "biuf"]]


def _have_draws(first: xr.DataArray, second: xr.DataArray) -> bool | None:
    """Whether daily values have the random draws of the same adjustment; None if they are not daily or do not tell."""
    days: Any = first.get_index("time") if "time" in first.dims else ()
    how_a, how_b = (str(data.attrs.get("bias_adjustment", "")) for data in (first, second))
    if not (how_a and how_b) or len(days) < 2 or (days[1] - days[0]).days != 1:
        return None
    return how_a == how_b and _DRAWS.search(how_a) is not None


def render(found: Comparison) -> list[str]:
    """Return lines about each variable that differs, what is not in both, and reasons."""
    lines = []
    for name, (year, *_) in found.different.items():
        far = f"{year.largest:.3g} {found.units[name]} at most, {_NOISE[year.beyond_noise]}"
        lines.append(f"{name}: {100 * year.share:.3g} % of values differ, by {far}")
    lines.append(f"equal: {counted(len(found.differences) - len(lines), 'variable')}")
    alone = ("A", found.only_in_a), ("B", found.only_in_b)
    for name, products in alone:
        lines += [f"only in {name}: {product}" for product in products[:_SHOWN]]
        lines += [f"only in {name}: {len(products) - _SHOWN} more, which --json lists"] if products[_SHOWN:] else []
    lines += [f"{name}: {'; '.join(notes)}" for name, notes in found.notes.items()]
    lines += [f"other, or known of one only: {key}" for key in found.keys]
    return lines + [f"{name}: {' and '.join(versions)}" for name, *versions in found.versions]


def write_page(found: Comparison, maps: Mapping[str, xr.Dataset], out: Path, a: Path, b: Path) -> None:
    """Write the page `out`: the lines of `render`, a table of what differs, by season, and maps."""
    rows = []
    for name, row in ((name, row) for name, of in found.different.items() for row in of):
        numbers = [f"{of:.4g}" for of in (100 * row.share, row.largest, row.q999, row.mean)]
        rows.append([f"{name} [{found.units[name]}]", row.season, *numbers, str(row.missing), _NOISE[row.beyond_noise]])
    drawings = []
    for name, fields in maps.items():
        shown = {"Share": fields["share"], "Largest": fields["largest"], "Mean": abs(fields["mean"])}
        words = f"{name}: share of values that differ, largest and mean difference without sign [{found.units[name]}]."
        drawings.append(Drawing(f"compared+{name}", words, share_maps, [shown], {"title": name}))
    sections = [
        Section("What differs, and why", [Text(line) for line in render(found)]),
        Section("By how much", [Table(_HEADS, rows, "B minus A")]),
        Section("Where", [Text(f"Maps of {len(maps)} of {len(found.different)} variables that differ."), *drawings]),
    ]
    title = f"Two productions: {'equal' if found.is_equal else 'different'}"
    page = render_page(title, f"A is {a}, B is {b}.", with_pictures(sections))
    store.write_page(page, out, store.Marker("compare", {"a": str(a), "b": str(b)}))
