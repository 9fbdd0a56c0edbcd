"""Checks between sections: regions that meet, domains that have a host, sources and variables that are known."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from espo_luigi.config.diagnosis import DiagStep, OffDiag
from espo_luigi.config.fields import NoEffect, Section
from espo_luigi.config.messages import no_effect
from espo_luigi.config.regions import Custom, Region
from espo_luigi.config.schema import RunConfig
from espo_luigi.errors import ConfigurationError, nearest

logger = logging.getLogger(__name__)

_SUFFIX = "_nodup"
# Bounds are decimal numbers in a file: nothing between two of them is narrower than this.
_TOLERANCE = 1e-9


def checked(config: RunConfig) -> RunConfig:
    """Return `config` with the hosts of its domains resolved, after checks between its sections.

    Raises
    ------
    ConfigurationError
        Regions overlap or leave a gap; a domain has no host or lies outside it; a variable or a source is unknown.
    """
    _check_regions(config.custom.regions)
    _check_source(config)
    _check_variables(config)
    _check_unused(config)
    if config.off_diag is None:
        return config
    return config.model_copy(update={"off_diag": _with_hosts(config.off_diag, config.custom)})


def _check_regions(regions: Mapping[str, Region]) -> None:
    columns: dict[tuple[float, float], list[tuple[str, Region]]] = defaultdict(list)
    for key, region in regions.items():
        columns[region.lon_bnds].append((key, region))
    for column in columns.values():
        ordered = sorted(column, key=lambda one: one[1].lat_bnds)
        for (south, below), (north, above) in pairwise(ordered):
            _check_pair(south, below, north, above)


def _check_pair(south: str, below: Region, north: str, above: Region) -> None:
    distance = above.lat_bnds[0] - below.lat_bnds[1]
    if abs(distance) <= _TOLERANCE:
        return
    problem = "leave a gap" if distance > 0 else "overlap"
    raise ConfigurationError(
        f"The regions `custom.regions.{south}` and `custom.regions.{north}` {problem}: "
        f"{south} ends at {below.lat_bnds[1]:g} degrees north and {north} begins at {above.lat_bnds[0]:g}. "
        "Give both the same bound, between two grid points."
    )


def _check_source(config: RunConfig) -> None:
    path = "extraction.reference.search_data_catalogs.other_search_criteria.source"
    wanted, named = config.extraction.reference.wanted_source, config.extraction.ref_source
    if wanted is None and named is None:
        got = config.extraction.reference.search_data_catalogs.other_search_criteria.get("source")
        raise ConfigurationError(
            f"`{path}`: got {got!r}, expected one name. It is the reference dataset's source, and names its files."
        )
    if wanted and named and wanted != named:
        logger.warning("`extraction.ref_source` is %s and `%s` is %s: the latter is taken.", named, path, wanted)


def _check_variables(config: RunConfig) -> None:
    path = "extraction.simulation.search_data_catalogs.variables_and_freqs"
    for variable in config.biasadjust.variables:
        if variable not in config.variables:
            known = ", ".join(config.variables)
            raise ConfigurationError(
                f"`biasadjust.variables.{variable}`: this variable is not among those of `{path}`: {known}"
                f"{nearest(variable, config.variables) or '.'} Adjust one of them, or extract {variable} too."
            )


def _with_hosts(off_diag: OffDiag, custom: Custom) -> OffDiag:
    steps = {name: _hosted(name, step, off_diag.domains, custom) for name, step in off_diag.steps.items()}
    return off_diag.model_copy(update={"each": off_diag.each.model_copy(update=steps)})


def _hosted(name: str, step: DiagStep, domains: Mapping[str, Region], custom: Custom) -> DiagStep:
    path = f"off-diag.steps.{name}.domain"
    # Only the whole domain's scenario is made; the reference and the regridded simulation only exist by region.
    hosts = dict(custom.regions) | ({custom.amno_region.name: custom.amno_region} if name == "scen" else {})
    found = {}
    for domain, box in domains.items():
        if domain not in step.domain:
            raise ConfigurationError(
                f"`{path}.{domain}` is missing. It names the region that hosts the domain: {', '.join(hosts)}."
            )
        found[domain] = _host(f"{path}.{domain}", step.domain[domain], hosts)
        _check_inside(f"{path}.{domain}", domain, box, hosts[found[domain]])
    return step.model_copy(update={"domain": MappingProxyType(found)})


def _host(path: str, wanted: str, hosts: Mapping[str, Region]) -> str:
    if wanted in hosts:
        return wanted
    similar = [host for host in hosts if host.removesuffix(_SUFFIX) == wanted.removesuffix(_SUFFIX)]
    if len(similar) == 1:
        logger.warning("`%s` is %s, which is not a region: %s is taken.", path, wanted, similar[0])
        return similar[0]
    raise ConfigurationError(
        f"`{path}`: got {wanted!r}, expected one of {', '.join(hosts)}{nearest(wanted, hosts) or '.'}"
    )


def _check_inside(path: str, domain: str, box: Region, host: Region) -> None:
    """Refuse a domain that its host does not touch; of one that sticks out, what lies inside is taken."""
    latitudes = _common(box.lat_bnds, host.lat_bnds)
    longitudes = max((_common(_turned(box.lon_bnds, turn), host.lon_bnds) for turn in (-360, 0, 360)), key=_length)
    if _length(latitudes) <= 0 or _length(longitudes) <= 0:
        raise ConfigurationError(
            f"`{path}`: the domain {domain} ({_shown(box)}) is not inside its host {host.name} ({_shown(host)}). "
            "Choose another host, or another domain."
        )
    if _length(latitudes) < _length(box.lat_bnds) or _length(longitudes) < _length(box.lon_bnds):
        logger.warning(
            "`%s`: the domain %s (%s) sticks out of its host %s (%s): only what lies inside is diagnosed.",
            *(path, domain, _shown(box), host.name, _shown(host)),
        )


def _common(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return max(one[0], other[0]), min(one[1], other[1])


def _length(bounds: tuple[float, float]) -> float:
    return bounds[1] - bounds[0]


def _turned(bounds: tuple[float, float], turn: float) -> tuple[float, float]:
    return bounds[0] + turn, bounds[1] + turn


def _shown(box: Region) -> str:
    (west, east), (south, north) = box.lon_bnds, box.lat_bnds
    return f"{south:g}..{north:g} degrees north, {west:g}..{east:g} degrees east"


def _check_unused(config: RunConfig) -> None:
    for path, mark in _unused(config, ""):
        if mark is NoEffect.REFUSE:
            raise ConfigurationError(
                f"`{path}`: in ESPO-G this key changes the numbers of products, and espo_luigi does not know how to. "
                "Remove it if products without it will do."
            )
        logger.warning("`%s` has no effect in espo_luigi: it changes attributes of products in ESPO-G.", path)


def _unused(value: Any, path: str) -> Iterator[tuple[str, NoEffect]]:
    """Yield the paths of keys that are given, are used in ESPO-G, and have no effect here."""
    if isinstance(value, Section):
        for name, inner in value:
            field = type(value).model_fields[name]
            key, mark = f"{path}{field.alias or name}", no_effect(field)
            if mark is None:
                yield from _unused(inner, f"{key}.")
            elif mark is not NoEffect.SILENT and inner:
                yield key, mark
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _unused(inner, f"{path}{key}.")
