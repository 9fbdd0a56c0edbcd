"""CMIP7's files: the columns in their names and folders, and the variables that they hold.

Files hold `tas` for the daily mean, maximum and minimum. Only the branding suffix and `cell_methods` tell these apart.

Sources: Global Attributes v1.1 (doi:10.5281/zenodo.19366138) for names and folders; the CMIP7 data request v1.2.2.5 for
the variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xarray as xr

from espo_luigi.errors import DataError

_SUFFIX = r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+){3}"
_NAME = re.compile(
    rf"(?P<variable_id>[A-Za-z0-9]+)_(?P<branding_suffix>{_SUFFIX})_(?P<frequency>[A-Za-z0-9]+)_(?P<region>[A-Za-z0-9-]+)"
    r"_(?P<grid_label>g[A-Za-z0-9]+)_(?P<source>[A-Za-z0-9-]+)_(?P<experiment>[A-Za-z0-9-]+)"
    r"_(?P<member>r\d+i\d+[a-z]?p\d+f\d+)(?:_\d{4,}(?:-\d{4,})?)?$"
)
_FOLDERS = (
    *("mip_era", "activity", "institution", "source", "experiment", "member", "region", "frequency"),
    *("variable_id", "branding_suffix", "grid_label", "version"),
)
_VERSION = re.compile(r"v\d+")

_MEAN, _MAXIMUM, _MINIMUM = "area: time: mean", "area: mean time: maximum", "area: mean time: minimum"
VARIABLES: Mapping[tuple[str, str], tuple[str, str]] = {
    ("tas", "tavg-h2m-hxy-u"): ("tas", _MEAN),
    ("tas", "tmax-h2m-hxy-u"): ("tasmax", _MAXIMUM),
    ("tas", "tmin-h2m-hxy-u"): ("tasmin", _MINIMUM),
    ("hurs", "tavg-h2m-hxy-u"): ("hurs", _MEAN),
    ("hurs", "tmax-h2m-hxy-u"): ("hursmax", _MAXIMUM),
    ("hurs", "tmin-h2m-hxy-u"): ("hursmin", _MINIMUM),
    ("sfcWind", "tavg-h10m-hxy-u"): ("sfcWind", _MEAN),
    ("sfcWind", "tmax-h10m-hxy-u"): ("sfcWindmax", _MAXIMUM),
    ("pr", "tavg-u-hxy-u"): ("pr", _MEAN),
    ("rsds", "tavg-u-hxy-u"): ("rsds", _MEAN),
    ("sftlf", "ti-u-hxy-u"): ("sftlf", "area: mean"),
    ("orog", "ti-u-hxy-u"): ("orog", "area: mean"),
    ("areacella", "ti-u-hxy-u"): ("areacella", "area: sum"),
}
"""By `variable_id` and branding suffix: the variable that people search, and its `cell_methods`.

Any other variable is searched by its branded name, such as ``tas_tmax-h2m-hxy-crp``.
"""

NAMES_IN_FILES: Mapping[str, str] = {searched: held for (held, _), (searched, _) in VARIABLES.items()}


def is_cmip7(attrs: Mapping[Any, Any], path: str) -> bool:
    """Whether a file is raw data of CMIP7, by its attributes, or else by its name or its folders."""
    if str(attrs.get("cat:processing_level", "raw")) != "raw":
        return False
    era = str(attrs.get("mip_era", "")).strip()
    by_attributes = "branding_suffix" in attrs or attrs.get("drs_specs") == "MIP-DRS7"
    return era == "CMIP7" or (not era and (by_attributes or bool(described_by_path(path))))


def described_by_path(path: str) -> dict[str, str]:
    """Return the columns that a file's name and folders fill; empty if neither follows CMIP7's rules."""
    folders, name = Path(path).parts[:-1], re.sub(r"(\.nc4?|\.zarr|\.zarr\.zip)$", "", Path(path).name)
    tree = dict(zip(_FOLDERS, folders[-len(_FOLDERS) :], strict=False))
    found = tree if tree.get("mip_era") == "CMIP7" and len(tree) == len(_FOLDERS) else {}
    if match := _NAME.match(name):
        version = {"version": folders[-1]} if folders and _VERSION.fullmatch(folders[-1]) else {}
        found = found | version | match.groupdict() | {"mip_era": "CMIP7"}
    return found | ({"region": normal_region(found["region"])} if found else {})


def normal_region(region: str) -> str:
    """Return a region's code as the vocabulary has it now: data request 1.2.2.2 and older wrote GLB for glb."""
    return region.lower() if region.isalpha() else region


def suffix_of(attrs: Mapping[Any, Any], path: str) -> str:
    """Return the branding suffix that a file's attributes or path name; empty if it is absent.

    Raises
    ------
    DataError
        If they name several.
    """
    texts = {
        "branding_suffix": str(attrs.get("branding_suffix", "")).strip(),
        "branded_variable": str(attrs.get("branded_variable", "")).strip().partition("_")[2],
        "the file's name": described_by_path(path).get("branding_suffix", ""),
    }
    named = {where: text for where, text in texts.items() if text}
    if len(set(named.values())) > 1:
        shown = ", ".join(f"{where} {text!r}" for where, text in named.items())
        raise DataError(f"the branding suffix is ambiguous: {shown}. Correct the attributes or the name")
    return next(iter(named.values()), "")


def searched_names(ds: xr.Dataset, names: list[str], path: str) -> dict[str, str]:
    """Return the variable that people search for each of `names` in a raw file of CMIP7.

    Raises `DataError` if the suffix and `cell_methods` contradict each other, or neither tells which variable it is.
    """
    suffix = suffix_of(ds.attrs, path)
    held = str(ds.attrs.get("variable_id") or described_by_path(path).get("variable_id", ""))
    # A suffix is that of one variable. Tests made from CMIP6 hold `tasmax` where `variable_id` is `tas`.
    of_suffix = {held, searched_name(held, suffix)} & set(names) or set(names)
    methods = {name: str(ds[name].attrs.get("cell_methods", "")) for name in names}
    return {name: _meaning(name, suffix if name in of_suffix else "", methods[name]) for name in names}


def searched_name(name: str, suffix: str) -> str:
    """Return the variable that people search for a `variable_id` (or that variable itself) with a branding suffix."""
    if (name, suffix) in VARIABLES:
        return VARIABLES[name, suffix][0]
    known = {searched for (_, known), (searched, _) in VARIABLES.items() if known == suffix}
    return name if name in known or not suffix or "_" in name else f"{name}_{suffix}"


def _meaning(name: str, suffix: str, cell_methods: str) -> str:
    fitting = [meant for held, meant in VARIABLES.items() if name in (held[0], meant[0]) and suffix in ("", held[1])]
    if not fitting:
        return searched_name(name, suffix)
    agreeing = [searched for searched, expected in fitting if _agree(cell_methods, expected)]
    if len(agreeing) == 1 and (suffix or cell_methods):
        return agreeing[0]
    if suffix:
        raise DataError(
            f"{name} has the branding suffix {suffix!r} and cell_methods {cell_methods!r}, which contradict "
            f"each other; expected cell_methods {fitting[0][1]!r} with this suffix. Correct or exclude the file"
        )
    raise DataError(
        f"{name} has no branding suffix, and cell_methods {cell_methods!r}: expected the attribute branding_suffix, "
        "which tells means, maxima and minima apart. Set it, or name the file as CMIP7 does"
    )


def _agree(cell_methods: str, expected: str) -> bool:
    """Whether `cell_methods` agree with the expected methods; an absent method agrees."""
    said, wanted = _methods(cell_methods), _methods(expected)
    return all(said.get(dim, method) == method for dim, method in wanted.items())


def _methods(cell_methods: str) -> dict[str, str]:
    """Return ``area: mean time: maximum (interval: 1 hour)`` as ``{"area": "mean", "time": "maximum"}``."""
    found: dict[str, list[str]] = {}
    dims: list[str] = []
    ends = True
    for word in re.sub(r"\([^)]*\)", "", cell_methods.lower()).split():
        if word.endswith(":"):
            dims = [word[:-1]] if ends else [*dims, word[:-1]]
            ends = False
            continue
        ends = True
        for dim in dims:
            found.setdefault(dim, []).append(word)
    # Of daily values, both forms say the same.
    return {dim: " ".join(words).removesuffix(" within days") for dim, words in found.items()}
