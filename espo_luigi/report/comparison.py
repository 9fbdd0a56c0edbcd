"""Two finished productions compared: which products differ, by how much, where and why; and the page about it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import xarray as xr

from espo_luigi import store
from espo_luigi.errors import DataError, StoreError
from espo_luigi.publication.catalogue import row_of
from espo_luigi.publication.products import Product, find_products
from espo_luigi.report.drawings import Drawing, units_text, with_pictures
from espo_luigi.report.html import Section, Table, Text, render_page
from espo_luigi.report.maps import MOST_MAPS, share_maps
from espo_luigi.science.diagnose import apart

_NOISE = {True: "more than noise", False: "within noise", None: "too few cells to tell noise"}
_HEADS = ("Variable", "Season", "Days that differ [%]", "Largest", "Quantile 99.9 %", "Mean", "Missing in one", "Noise")


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
    """Compare the daily products in two folders, or two archives; return maps of variables that differ, too.

    Raises
    ------
    StoreError
        If nothing can be compared, a store is damaged, or a folder has two products of the same data.
    """
    first, second = (_products(path) for path in (a, b))
    refused, parts = dict[str, str](), dict[str, Sequence[str]]()
    found, maps = dict[str, Sequence[apart.Difference]](), dict[str, xr.Dataset]()
    for name in (both := [name for name in first if name in second]):
        one, other = (store.open_store(of[name].path, cut=False)[name.split()[-1]] for of in (first, second))
        try:
            one, other, parts[name] = apart.shared(one, other)
            found[name], maps[name] = apart.compare(one, other, tell)
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
    """Daily products by dataset, domain, level and variable; of an archive, by variable."""
    is_archive, found = path.name.endswith((".zarr", ".zarr.zip")), dict[str, Product]()
    if is_archive:
        store.open_store(path)  # says what is wrong with a damaged archive
    marker = store.read_marker(path) if is_archive else None
    for product in [Product(path, marker)] if marker else find_products(path):
        row = row_of(product) if product.is_data else {}
        about = "" if is_archive else "".join(f"{row.get(name)} " for name in ("id", "domain", "processing_level"))
        for variable in ast.literal_eval(row["variable"]) if row.get("xrfreq") == "D" else ():
            name = f"{about}{variable}"
            if name in found:
                raise StoreError(f"{found[name].path} and {product.path} are both {name}: compare single archives")
            found[name] = product
    if not found:
        raise StoreError(f"{path} has no daily product: expected a folder of finished products, or an archive")
    return found


def _unequal(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, list[str]]:
    both = {key: [first.get(key, "–"), second.get(key, "–")] for key in {**first, **second}}
    return {key: values for key, values in both.items() if values[0] != values[1]}


def render(found: Comparison) -> list[str]:
    """Return lines about each variable, all year, about what is not in both, and about reasons."""
    lines = [f"only in {name}: {one}" for name, of in (("A", found.only_in_a), ("B", found.only_in_b)) for one in of]
    lines += [f"not compared: {name}: {reason}" for name, reason in found.refused.items()]
    lines += [f"compared in part: {name}: {'; '.join(said)}" for name, said in found.parts.items()]
    years = {name: year for name, (year, *_) in found.differences.items() if year.share or year.missing}
    for name, year in years.items():
        far = f"{year.largest:.3g} {found.units[name]} at most, {_NOISE[year.beyond_noise]}"
        lines.append(f"{name}: {100 * year.share:.3g} % of days differ, by {far}")
    lines.append(f"equal: {len(found.differences) - len(years)} variable(s)")
    lines += [f"other values of {key}" for key in found.keys]
    return lines + [f"{name}: {' and '.join(values)}" for name, values in found.versions.items()]


def write_page(found: Comparison, maps: Mapping[str, xr.Dataset], out: Path, a: Path, b: Path) -> None:
    """Write the page `out`: the lines of `render`, a table of seasons, and maps of the variables that differ."""
    rows = []
    for name, row in ((name, row) for name, of in found.differences.items() for row in of if row.share or row.missing):
        numbers = [f"{of:.4g}" for of in (100 * row.share, row.largest, row.q999, row.mean)]
        rows.append([f"{name} [{found.units[name]}]", row.season, *numbers, str(row.missing), _NOISE[row.beyond_noise]])
    drawings = []
    for name, fields in [(name, of) for name, of in maps.items() if len(of.dims) == 2][:MOST_MAPS]:
        shown = {"Share of days": fields["share"], "Largest": fields["largest"], "Mean": abs(fields["mean"])}
        words = f"{name}: share of days that differ, largest and mean difference without sign [{found.units[name]}]."
        drawings.append(Drawing(f"compared+{name}", words, share_maps, [shown], {"title": name}))
    sections = [
        Section("What differs", [Text(line) for line in render(found)]),
        Section("By season", [Table(_HEADS, rows, "B minus A, in the variable's units")]),
        Section("Where", drawings),
    ]
    title = f"Two productions: {'equal' if found.is_equal else 'different'}"
    page = render_page(title, f"A is {a}, B is {b}.", with_pictures(sections))
    store.write_page(page, out, store.Marker("compare", {"a": str(a), "b": str(b)}))
