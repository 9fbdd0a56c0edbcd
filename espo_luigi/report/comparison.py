"""Two finished productions compared: which products differ, by how much, where and why; and the page about it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xarray as xr

from espo_luigi import store
from espo_luigi.catalog.files import open_netcdf
from espo_luigi.errors import DataError, StoreError
from espo_luigi.publication.catalogue import row_of
from espo_luigi.publication.products import Product, find_products
from espo_luigi.report.drawings import Drawing, units_text, with_pictures
from espo_luigi.report.html import Section, Table, Text, render_page
from espo_luigi.report.maps import MOST_MAPS, share_maps
from espo_luigi.science.choices import METHODS
from espo_luigi.science.diagnose import apart
from espo_luigi.science.quality import is_flags

_NOISE = {True: "more than noise", False: "within noise", None: "noise not told"}
# In the attribute of adjusted variables: an argument with which a method draws, or another method, which may draw.
_OTHER_METHOD = rf"(?:^|; )(?:\w+: )*(?!(?:{'|'.join(METHODS)})\()[\w.]+\("
_DRAWS = re.compile(rf"jitter|adapt_freq(?!_thresh=None)|{_OTHER_METHOD}")
_HEADS = ("Variable", "Season", "Values that differ [%]", "Largest", "Quantile 99.9 %", "Mean", "In one only", "Noise")


@dataclass(frozen=True)
class Comparison:
    """Differences of two productions by variable of a product, and reasons for them.

    `refused` has the reasons for which a variable cannot be compared, `parts` the days and cells of A or B alone.
    `keys` of the configuration (and raw datasets) have other values; `versions` of packages are those of A and of B.
    """

    only_in_a: Sequence[str]
    only_in_b: Sequence[str]
    refused: Mapping[str, str]
    parts: Mapping[str, Sequence[str]]
    differences: Mapping[str, Sequence[apart.Difference]]
    units: Mapping[str, str]
    keys: Sequence[str]
    versions: Mapping[str, Sequence[str]]

    @property
    def is_equal(self) -> bool:
        """Whether both have the same products, days and cells, with the same values."""
        years = [year for year, *_ in self.differences.values()]
        lacking = self.only_in_a or self.only_in_b or self.refused or self.parts
        return not lacking and not any(year.share or year.missing for year in years)


def compare(a: Path, b: Path, tell: Callable[[str], object]) -> tuple[Comparison, dict[str, xr.Dataset]]:
    """Compare the products in two folders, or two archives; return maps of variables that differ, too.

    Raises
    ------
    StoreError
        If nothing can be compared, or a store is damaged.
    """
    first, second = (_products(path) for path in (a, b))
    refused, parts = dict[str, str](), dict[str, Sequence[str]]()
    found, maps = dict[str, Sequence[apart.Difference]](), dict[str, xr.Dataset]()
    for name in (both := [name for name in first if name in second]):
        one, other = (_opened(of[name])[name.split()[-1]] for of in (first, second))
        try:
            one, other, parts[name] = apart.shared(one, other)
            found[name], maps[name] = apart.compare(one, other, tell, _have_draws(one, other))
        except DataError as error:
            refused[name] = str(error)
    if not both:
        got = " and ".join(f"{path} has {', '.join([*of][:5])}" for path, of in ((a, first), (b, second)))
        raise StoreError(f"nothing to compare: {got}; expected the same dataset, domain and level, or two archives")
    keys, versions = set[str](), dict[str, list[str]]()
    for mine, theirs in ((first[name].marker, second[name].marker) for name in both):
        keys |= _unequal(mine.fingerprints, theirs.fingerprints).keys()
        versions |= _unequal(mine.versions, theirs.versions)
    alone = sorted(first.keys() - second.keys()), sorted(second.keys() - first.keys())
    told = {name: said for name, said in parts.items() if said}
    units = {name: units_text(fields["mean"].attrs.get("units", "")) for name, fields in maps.items()}
    different = {name: fields for name, fields in maps.items() if found[name][0].share}
    return Comparison(*alone, refused, told, found, units, sorted(keys), versions), different


def _products(path: Path) -> dict[str, Product]:
    """Daily products by dataset, domain, level and variable; of an archive, by variable.

    Others, and several of the same data, are by their place.
    """
    is_archive, found = path.name.endswith((".zarr", ".zarr.zip")), defaultdict[str, dict[str, Product]](dict)
    if is_archive:
        store.open_store(path)  # says what is wrong with a damaged archive
    marker = store.read_marker(path) if is_archive else None
    for product in [Product(path.absolute(), marker)] if marker else find_products(path):
        row = row_of(product) if product.is_data else {}
        place, is_daily = "" if is_archive else f"{product.below(path.absolute())} ", row.get("xrfreq") == "D"
        about = "".join(f"{row.get(name)} " for name in ("id", "domain", "processing_level"))
        for variable in ast.literal_eval(row["variable"]) if is_daily else _numbers(product):
            found[(about if is_daily and not is_archive else place) + variable][place + variable] = product
    if not found:
        raise StoreError(f"{path} has no product: expected a folder of finished products, or an archive")
    return {name if len(of) == 1 else place: one for name, of in found.items() for place, one in of.items()}


def _opened(product: Product) -> xr.Dataset:
    if product.is_data:
        return store.open_store(product.path, cut=False)
    return open_netcdf(str(product.path), (), {"chunks": None})


def _numbers(product: Product) -> list[str]:
    """The variables of a store, or of the NetCDF file beside a table, that have numbers along a dimension."""
    if not product.is_data and product.path.suffix != ".nc":
        return []
    return [str(name) for name, of in _opened(product).data_vars.items() if of.ndim and of.dtype.kind in "biuf"]


def _have_draws(one: xr.DataArray, other: xr.DataArray) -> bool | None:
    """Whether daily values have the random draws of the same adjustment; None of flags, and of what is not daily."""
    days: Any = one.get_index("time") if "time" in one.dims else ()
    if is_flags(one.name) or len(days) < 2 or (days[1] - days[0]).days != 1:
        return None
    said, also = (str(data.attrs.get("bias_adjustment", "")) for data in (one, other))
    return said == also and _DRAWS.search(said) is not None


def _unequal(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, list[str]]:
    both = {key: [first.get(key, "–"), second.get(key, "–")] for key in {**first, **second}}
    return {key: values for key, values in both.items() if values[0] != values[1]}


def render(found: Comparison) -> list[str]:
    """Return lines about each variable, all year, and those of `_around`."""
    years = {name: year for name, (year, *_) in found.differences.items() if year.share or year.missing}
    lines = []
    for name, year in years.items():
        far = f"{year.largest:.3g} {found.units[name]} at most, {_NOISE[year.beyond_noise]}"
        lines.append(f"{name}: {100 * year.share:.3g} % of values differ, by {far}")
    return [*lines, f"equal: {len(found.differences) - len(years)} variable(s)", *_around(found)]


def _around(found: Comparison) -> list[str]:
    """Lines about what is not in both, and about reasons."""
    lines = [f"only in {name}: {one}" for name, of in (("A", found.only_in_a), ("B", found.only_in_b)) for one in of]
    lines += [f"not compared: {name}: {reason}" for name, reason in found.refused.items()]
    lines += [f"compared in part: {name}: {'; '.join(said)}" for name, said in found.parts.items()]
    lines += [f"other values of {key}" for key in found.keys]
    return lines + [f"{name}: {' and '.join(values)}" for name, values in found.versions.items()]


def write_page(found: Comparison, maps: Mapping[str, xr.Dataset], out: Path, a: Path, b: Path) -> None:
    """Write the page `out`: a table of what differs, by season, the lines of `_around`, and maps."""
    rows = []
    for name, row in ((name, row) for name, of in found.differences.items() for row in of if row.share or row.missing):
        numbers = [f"{of:.4g}" for of in (100 * row.share, row.largest, row.q999, row.mean)]
        rows.append([f"{name} [{found.units[name]}]", row.season, *numbers, str(row.missing), _NOISE[row.beyond_noise]])
    drawings = []
    for name, fields in [(name, of) for name, of in maps.items() if _is_map(of)][:MOST_MAPS]:
        shown = {"Share": fields["share"], "Largest": fields["largest"], "Mean": abs(fields["mean"])}
        words = f"{name}: share of values that differ, largest and mean difference without sign [{found.units[name]}]."
        drawings.append(Drawing(f"compared+{name}", words, share_maps, [shown], {"title": name}))
    sections = [
        Section("What differs", [Table(_HEADS, rows, "B minus A, in the variable's units")]),
        Section("Why, and what is not compared", [Text(line) for line in _around(found)]),
        Section("Where", drawings),
    ]
    title = f"Two productions: {'equal' if found.is_equal else 'different'}"
    page = render_page(title, f"A is {a}, B is {b}.", with_pictures(sections))
    store.write_page(page, out, store.Marker("compare", {"a": str(a), "b": str(b)}))


def _is_map(fields: xr.Dataset) -> bool:
    horizontal = {dim for name in ("lat", "lon") if name in fields.coords for dim in fields[name].dims}
    return len(horizontal) == 2 and horizontal == set(fields.sizes)
