"""Checks between sections: regions that meet, boxes that cover regions, periods within the data, known variables."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from espo_luigi.config.diagnosis import Diagnostics, DiagStep, OffDiag
from espo_luigi.config.dialects import REFERENCE_DIAGNOSTICS
from espo_luigi.config.regions import Region
from espo_luigi.config.schema import RunConfig
from espo_luigi.config.searching import Extraction
from espo_luigi.errors import ConfigurationError, nearest
from espo_luigi.fields import check_threshold, converts, file_name_part, is_total
from espo_luigi.jobs.dask.settings import check_client, check_settings
from espo_luigi.science.derivations import DERIVATIONS, NEEDED_FOR, OF_RAW_DATA
from espo_luigi.science.geometry.boxes import TOLERANCE, missing_sides, overlap
from espo_luigi.science.limits import FLAGS
from espo_luigi.science.periods import date_of, each_period
from espo_luigi.science.variables import variable as row_of

logger = logging.getLogger(__name__)

# The projects of the configurations that `espo init` copies.
ORIGINALS = ("ESPO-G6", "ESPO")
# Whose products are, as their attributes tell.
WHO_ADJUSTS = ("bias_adjust_institution", "bias_adjust_project")

_SUFFIX = "_nodup"
_CASCADE = "regrid.regrid_dataset.intermediate_grids"


def is_of(name: str, original: str) -> bool:
    """Return whether a project's name says that it is a part of an original, such as ESPO-G6-E5L of ESPO-G6."""
    return name == original or name.startswith(f"{original}-")


def checked(config: RunConfig) -> RunConfig:
    """Return `config` with the hosts of its domains resolved, after checks between its sections.

    Raises
    ------
    ConfigurationError
        Regions overlap or leave a gap; the whole domain or a grid of the cascade does not cover them; a period or a
        date lies outside of the data; a threshold is of another quantity than its variable; a domain has no host or
        lies outside it; a variable or a source is unknown.
    """
    for name, own in config.own_variables.items():
        own.checked(name)
    _check_project(config)
    _check_pieces(config)
    _check_inputs(config)
    _check_units(config)
    _check_products(config)
    _check_downscaling(config)
    _check_regions(config)
    _check_grids(config)
    _check_source(config)
    _check_variables(config)
    _check_periods(config)
    _check_dates(config)
    _check_thresholds(config)
    _check_properties(config)
    check_client(config.dask_client)
    check_settings(config.dask_settings)
    if config.off_diag is None:
        return config
    return config.model_copy(update={"off_diag": _with_hosts(config.off_diag, config)})


def _check_project(config: RunConfig) -> None:
    """Check that a copy of what the package holds, under an own project's name, does not claim to be the original."""
    name = config.project.name if config.project else None
    for key, how in config.biasadjust.variables.items():
        original = how.adjusting_args.bias_adjust_project
        if name and original in ORIGINALS and not is_of(name, original):
            raise ConfigurationError(
                f"`biasadjust.variables.{key}.adjusting_args.bias_adjust_project`: got {original}, and `project.name` "
                f"is {name}: products would name another project than their own. Give your own project, and your own "
                "`bias_adjust_institution`, or null."
            )


def _check_pieces(config: RunConfig) -> None:
    """Refuse land that is cut in two ways, or in none, and members of a pool that are not adjusted together."""
    if bool(config.custom.regions) == (config.subregions is not None):
        both = "both are" if config.subregions else "neither is"
        raise ConfigurationError(
            f"`custom.regions` cuts the land into boxes, `subregions` (of ESPO v2) into slices: {both} given. Give one."
        )
    if config.subregions is None or config.extraction.simulation.search_data_catalogs.most_members == 1:
        return
    for name, variable in config.biasadjust.variables.items():
        group = getattr(variable.training_args, "group", None)
        if variable.variables:  # members go together or one by one, as the group says
            continue
        if isinstance(group, str) or (group is not None and "realization" not in group.add_dims):
            raise ConfigurationError(
                f"`biasadjust.variables.{name}.training_args.group` has no `add_dims: [realization]`, and pools have "
                "several members; add it, or take one member (`restrict_members: {ordered: 1}`)."
            )


def _check_inputs(config: RunConfig) -> None:
    """Refuse keys of the reference for simulations and the other way round, and a mask of a field that is not read."""
    reference, simulation = config.extraction.reference, config.extraction.simulation
    of_simulations = ("create_mask", "repairs", "fill_in_time")
    misplaced = {f"extraction.reference.{key}": "simulations" for key in of_simulations if getattr(reference, key)}
    fields = []
    if simulation.extract_dataset.mask:
        misplaced["extraction.simulation.extract_dataset.mask"] = "the reference"
    if reference.extract_dataset.mask:
        fields.append(("extraction.reference.extract_dataset.mask", "mask", reference))
    if simulation.create_mask:
        fields.append(("extraction.simulation.create_mask.variable", simulation.create_mask.variable, simulation))
    for key, whose in misplaced.items():
        raise ConfigurationError(f"`{key}` is a key of {whose} only. Move it there, or take it away.")
    for key, field, section in fields:
        if section.search_data_catalogs.variables_and_freqs.get(field) != "fx":
            raise ConfigurationError(
                f"`{key}` needs the fixed field {field}; expected `{field}: fx` in the search's `variables_and_freqs`."
            )


def _check_units(config: RunConfig) -> None:
    """Refuse units and accumulations of variables that are not read, and units of another quantity."""
    for whose in ("reference", "simulation"):
        extraction: Extraction = getattr(config.extraction, whose)
        inputs = (one for name in extraction.series for one in OF_RAW_DATA.get(name, ()))
        read = list(dict.fromkeys([*extraction.series, *inputs]))
        stated = [("units", row.variable, row.units) for row in extraction.units]
        stated += [("accumulation", name, "") for name in extraction.accumulation if name != "*"]
        for key, name, units in stated:
            path, wanted = f"`extraction.{whose}.{key}.{name}`", row_of(name, config.table).units
            if name not in read:
                near = nearest(name, read) or "."
                raise ConfigurationError(f"{path}: {name} is not read, but {', '.join(read)}{near}")
            if units and wanted and not converts(units, wanted) and not is_total(units, wanted):
                raise ConfigurationError(
                    f"{path}: got {units}, expected a unit that converts to {wanted}, or that of a day's total."
                )


def _check_products(config: RunConfig) -> None:
    """Refuse temperatures made consistent without what that takes, and treatments of what is no product."""
    adjusted, clean_up = config.biasadjust.adjusted, config.clean_up
    how, is_asked = clean_up.temperatures, "temperatures" in clean_up.model_fields_set
    if is_asked and config.consistency is None and {"tasmax", "tasmin", "dtr"} & {*adjusted}:
        raise ConfigurationError(
            f"`clean_up.temperatures: {how}` takes the adjusted {', '.join(sorted(NEEDED_FOR[how]))}; "
            f"`biasadjust.variables` has {', '.join(sorted(adjusted))}. Adjust them, choose another way "
            f"({', '.join(NEEDED_FOR)}), or leave the key out."
        )
    if clean_up.problems and "tasmin" not in config.published:
        raise ConfigurationError(
            "`clean_up.problems` masks variables where tasmin is 100 K or less, and there is no tasmin in the product: "
            f"`biasadjust.variables` has {', '.join(adjusted)}. Adjust tasmin, or tasmax and dtr, or leave the key out."
        )
    _check_derived(config)
    if config.subregions is None:
        refused = {"bitround": clean_up.bitround, "variables": clean_up.variables}
        if keys := ", ".join(f"`clean_up.{key}`" for key, is_given in refused.items() if is_given):
            raise ConfigurationError(
                f"{keys} would have no effect: only ESPO v2 does that, which has a section `subregions`. Leave it out."
            )
    diagnosed = config.domain_diag
    variables = set(diagnosed.change_units_arg) if diagnosed else set()
    for name, definition in diagnosed.properties["indicators"].items() if diagnosed else ():
        if lacking := set(definition.get("input", {}).values()) - variables:
            raise ConfigurationError(
                f"`domain-diag.change_units_arg` has no {', '.join(sorted(lacking))}, which "
                f"the property {name} takes. Add it with its unit, or take the property away."
            )
    _check_treatments(config, set(config.published))


def _check_downscaling(config: RunConfig) -> None:
    """Refuse variables that are not adjusted, differences of ratios, and windows longer than the reference."""
    section, adjusted = config.downscaling, config.biasadjust.adjusted
    if section is None:
        return
    if taken := [name for name in config.custom.regions if name.startswith("coarse")]:
        raise ConfigurationError(
            f"`custom.regions.{taken[0]}`: with `downscaling`, names that begin with coarse are those of coarse grids. "
            "Give the region another."
        )
    for name in section.variables.keys() - {*adjusted}:
        raise ConfigurationError(
            f"`downscaling.variables.{name}`: this variable is not adjusted; expected {', '.join(adjusted)}"
            f"{nearest(name, adjusted) or '.'}"
        )
    first, last = (int(year) for year in config.custom.ref_period)
    for name, key, how in section.ways(adjusted):
        row, given = row_of(name, config.table), how.given.arguments()
        if given.get("kind") == "+" and row.kind == "*":
            raise ConfigurationError(
                f"`{key}.arguments.kind`: got +, and {name} is a variable of ratios: differences could make it "
                "negative. Give *, or leave it out."
            )
        if (years := given.get("years", 0)) > last - first + 1:
            raise ConfigurationError(
                f"`{key}.arguments.years`: the downscaler {how.method} of {name} has windows of {years} years, and "
                f"`custom.ref_period` has {last - first + 1}. Give as many at most, or a longer reference."
            )
        for argument in ("wet_day", "lower_threshold", "upper_threshold"):
            if argument in given:
                check_threshold(f"{key}.arguments.{argument}", str(given[argument]), row.units)


def _check_derived(config: RunConfig) -> None:
    """Refuse to derive what is adjusted itself, what cannot be derived, and from what is not adjusted."""
    adjusted = config.biasadjust.adjusted
    for name, inputs in config.derived.items():
        path, ways = f"clean_up.derive.{name}", DERIVATIONS.get(name, ())
        if not ways:
            raise ConfigurationError(
                f"`{path}`: there is no way to derive {name}; expected {', '.join(DERIVATIONS)}"
                f"{nearest(name, DERIVATIONS) or '.'}"
            )
        if name in adjusted:
            raise ConfigurationError(f"`{path}`: {name} is adjusted itself. Leave it out here, or do not adjust it.")
        known = "; or ".join(", ".join(way.inputs) for way in ways)
        if inputs and not any({*way.inputs} == {*inputs} for way in ways):
            raise ConfigurationError(f"`{path}.from`: got {', '.join(inputs)}; expected {known}.")
        if not inputs or not {*inputs} <= {*config.not_derived}:
            raise ConfigurationError(
                f"`{path}`: {name} is derived from {', '.join(inputs) or known}, which have to be adjusted; "
                f"`biasadjust.variables` has {', '.join(adjusted)}. Adjust them, or leave {name} out."
            )


def _check_treatments(config: RunConfig, products: set[str]) -> None:
    """Refuse the treatment of what is no product, and of other variables than the product's own."""
    for name, treatment in config.clean_up.variables.items():
        for key in ("round_var", "clip_var", "limit_var"):
            treated: Mapping[str, Any] = getattr(treatment, key)
            if others := ", ".join(sorted(set(treated) - {name})):
                raise ConfigurationError(
                    f"`clean_up.variables.{name}.{key}`: got {others}, expected {name} only, whose product this "
                    f"treats. Give {others} its own section."
                )
        if name not in products:
            raise ConfigurationError(
                f"`clean_up.variables.{name}`: {name} is no product{nearest(name, products)}; "
                f"expected {', '.join(sorted(products))}."
            )
    limited = {f"clean_up.variables.{name}": one.limit_var for name, one in config.clean_up.variables.items()}
    limited["clean_up.xscen_clean_up"] = config.clean_up.xscen_clean_up.limit_var
    keys = [(f"{path}.limit_var.{name}", name) for path, names in limited.items() for name in names]
    trainings = config.biasadjust.trainings.items()
    keys += [(f"{path}.ratio_to", name) for name, (path, one) in trainings if getattr(one, "ratio_to", None)]
    for path, name in keys:
        units = row_of(name, config.table).units
        if name not in products or (units and not converts("W m-2", units)):
            got = f"{name} is in {units}" if name in products else f"{name} is no product{nearest(name, products)}"
            raise ConfigurationError(f"`{path}`: {got}; expected a product in W m-2, such as rsds.")


def _check_regions(config: RunConfig) -> None:
    """Refuse regions of the same longitudes that overlap or leave a gap, or that the domain does not cover."""
    regions, domain = config.custom.regions, config.domain  # which is cut out of the simulations
    ordered = sorted(regions.items(), key=lambda entry: (entry[1].lon_bnds, entry[1].lat_bnds))
    for (south, below), (north, above) in pairwise(ordered):
        distance = above.lat_bnds[0] - below.lat_bnds[1]
        if below.lon_bnds == above.lon_bnds and abs(distance) > TOLERANCE:
            raise ConfigurationError(
                f"The regions `custom.regions.{south}` and `custom.regions.{north}` "
                f"{'leave a gap' if distance > 0 else 'overlap'}: "
                f"{south} ends at {below.lat_bnds[1]:g} degrees north and {north} begins at {above.lat_bnds[0]:g}. "
                "Give both the same bound, between two grid points."
            )
    for key, region in regions.items():
        if missing := missing_sides(region.box, domain.box):
            raise ConfigurationError(
                f"`domain` ({domain.box}) does not cover `custom.regions.{key}` ({region.box}): {missing} "
                "would be extrapolated. Give it bounds that cover all regions, or correct the region's."
            )


def _check_grids(config: RunConfig) -> None:
    """Refuse a cascade that extrapolates: each grid covers the regions and one cell more of each grid after it."""
    margin, widened = (0.0, 0.0), ""
    # Slices are parts of a reference that may be smaller than the box that it is cut with: only `Regrid` can look.
    boxes = {f"custom.regions.{key}": region for key, region in config.custom.regions.items()}
    for name, grid in reversed(list(config.regrid.regrid_dataset.intermediate_grids.items())):
        made = grid.cf_grid_2d.made()
        for key, region in boxes.items():
            if missing := missing_sides(region.box.widened(*margin), made):
                raise ConfigurationError(
                    f"`{_CASCADE}.{name}`: its cells ({made}) do not cover `{key}` "
                    f"({region.box}){widened}: {missing} would be extrapolated. Give the grid bounds that cover all "
                    "regions, or leave the grid out (`espo docs configuration`, `regrid`)."
                )
        margin = grid.cf_grid_2d.d_lon, grid.cf_grid_2d.d_lat
        widened = f" with a cell more of the next grid, {name}, on each side"


def _check_periods(config: RunConfig) -> None:
    for name, variable in config.biasadjust.variables.items():
        path = f"biasadjust.variables.{name}"
        for outer in ("ref_period", "sim_period"):
            _check_within(config, f"{path}.training_args.period", variable.training_args.period, outer)
        for period in each_period(variable.adjusting_args.periods):
            _check_within(config, f"{path}.adjusting_args.periods", period, "sim_period")
    for path, reference, step in _steps(config):
        outer = "ref_period" if reference else "sim_period"
        _check_within(config, f"{path}.period", step.properties_and_measures.period, outer)


def _check_within(config: RunConfig, path: str, period: tuple[str, str], outer: str) -> None:
    allowed = each_period(getattr(config.custom, outer))
    if not any(first <= period[0] and period[1] <= last for first, last in allowed):
        years = " or ".join(map("-".join, allowed))
        raise ConfigurationError(
            f"`{path}`: got {'-'.join(period)}, expected years within `custom.{outer}`, {years}: of other years "
            f"nothing is extracted. Choose a period within it, or widen `custom.{outer}`."
        )


def _steps(config: RunConfig) -> Iterator[tuple[str, bool, DiagStep]]:
    """Yield each step's path as far as its properties, whether it is of the reference, and the step."""
    sections: Mapping[str, OffDiag | Diagnostics | None] = {
        "off-diag.steps": config.off_diag,
        "diagnostics": config.diagnostics,
    }
    for section, diagnosed in sections.items():
        for key, step in diagnosed.steps.items() if diagnosed else ():
            is_copied = (section, key) == ("diagnostics", "ref")
            path = REFERENCE_DIAGNOSTICS if is_copied else (section, key, "properties_and_measures")
            yield ".".join(path), key == "ref", step


def _check_dates(config: RunConfig) -> None:
    """Refuse days that no product can begin before, or end after, as products have the years of `custom.sim_period`."""
    first, last = (int(year) for year in config.custom.span)
    last_day = 30 if config.custom.maximal_calendar == "360_day" else 31
    for path, checks in config.health_checks.sets.items():
        start, end = checks.start_date, checks.end_date
        wrong = ""
        if start and date_of(start) < (first, 1, 1):
            wrong = f"`{path}.start_date`: got {start}, expected {first}-01-01 or later: products begin"
        elif end and date_of(end) > (last, 12, last_day):
            wrong = f"`{path}.end_date`: got {end}, expected {last}-12-{last_day} or earlier: products end"
        if wrong:
            raise ConfigurationError(
                f"{wrong} with `custom.sim_period`, so that all would fail. Change the date, or widen the period."
            )
        if end and date_of(end) > (last, 12, 30):
            logger.warning(
                "`%s.end_date` is %s: products with years of 360 days end on %s-12-30, and will fail.", path, end, last
            )


def _check_thresholds(config: RunConfig) -> None:
    """Refuse thresholds whose unit does not suit their variable."""
    for variable, (path, training) in config.biasadjust.trainings.items():
        for key, threshold in _thresholds(training.arguments()):
            check_threshold(f"{path}.{key}", threshold, row_of(variable, config.table).units)
    given = config.health_checks.variables_and_units or {}
    flags = [
        (f"{key}.flags.{variable}", variable, chosen)
        for key, checks in config.health_checks.sets.items()
        for variable, chosen in checks.arguments().get("flags", {}).items()
    ]
    for path, variable, chosen in flags:
        units = row_of(variable, config.table).units or given.get(variable)
        for flag in chosen:
            own = row_of(FLAGS[flag].of).shown_units
            if units and own and not converts(own, units):
                raise ConfigurationError(
                    f"`{path}.{flag}`: this flag is about values in {own}, and {variable} is in {units}. Remove it."
                )
        for key, threshold in _thresholds(chosen):
            check_threshold(f"{path}.{key}", threshold, units)


def _thresholds(arguments: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in arguments.items():
        if isinstance(value, Mapping):
            yield from _thresholds(value, f"{prefix}{key}.")
        elif "thresh" in key or key in ("lower", "upper", "lower_bound", "upper_bound"):
            yield f"{prefix}{key}", value


def _check_properties(config: RunConfig) -> None:
    """Refuse properties of variables that their datasets lack, and thresholds with an unsuitable unit."""
    for path, _, step in _steps(config):
        known = _diagnosed(config, of_product=".scen." in path)
        for name, definition in step.properties_and_measures.properties["indicators"].items():
            for data, variable in definition["input"].items():
                if variable not in known:
                    raise ConfigurationError(
                        f"`{path}.properties`: the property {name} needs the variable {variable!r}; there are "
                        f"{', '.join(known)}{nearest(variable, known) or '.'}"
                    )
                # A property of two variables, da1 and da2, has thresh1 and thresh2.
                key = data.replace("da", "thresh")
                threshold = definition.get("parameters", {}).get(key)
                if isinstance(threshold, str):
                    where = f"{path}.properties.indicators.{name}.parameters.{key}"
                    check_threshold(where, threshold, row_of(variable, config.table).units)


def _diagnosed(config: RunConfig, *, of_product: bool) -> list[str]:
    """The variables that have properties; a product has the adjusted variables and those derived from them."""
    made = set(config.published if of_product else config.variables)
    known = [name for name in config.variables if name in made]
    return known if "dtr" in known or not {"tasmax", "tasmin"} <= set(known) else [*known, "dtr"]


def _check_source(config: RunConfig) -> None:
    path = "extraction.reference.search_data_catalogs.other_search_criteria.source"
    wanted, named = config.extraction.reference.wanted_source, config.extraction.ref_source
    if wanted is None and named is None:
        got = config.extraction.reference.search_data_catalogs.other_search_criteria.get("source")
        raise ConfigurationError(
            f"`{path}`: got {got!r}, expected one name. It is the reference dataset's source, and names its files."
        )
    try:
        file_name_part(config.reference_source)
    except ValueError as error:
        raise ConfigurationError(f"`{path if wanted else 'extraction.ref_source'}`: {error}. It names files.") from None
    if wanted and named and wanted != named:
        logger.warning("`extraction.ref_source` is %s and `%s` is %s: the latter is taken.", named, path, wanted)


def _check_variables(config: RunConfig) -> None:
    search = config.extraction.reference.search_data_catalogs.variables_and_freqs
    used = {*config.variables, *search, *config.published}
    for name in sorted({*config.own_variables} - used):
        near = nearest(name, used) or "."
        logger.warning("`variables.%s` has no effect: %s is neither searched nor made%s", name, name, near)
    path = "extraction.simulation.search_data_catalogs.variables_and_freqs"
    named = [
        ("biasadjust.variables", name, f"Adjust one of them, or extract {name} too.")
        for name in config.biasadjust.adjusted
    ]
    named += [
        ("regrid.regrid_method", name, "Name one of them, or leave it out.") for name in config.regrid.regrid_method
    ]
    for section, name, advice in named:
        if name not in config.variables:
            raise ConfigurationError(
                f"`{section}.{name}`: this variable is not among those of `{path}`: {', '.join(config.variables)}"
                f"{nearest(name, config.variables) or '.'} {advice}"
            )


def _with_hosts(off_diag: OffDiag, config: RunConfig) -> OffDiag:
    """Return the section with each domain's host under its key in `custom.regions`."""
    steps = {}
    for name, step in off_diag.steps.items():
        # Only the whole domain's scenario is made; the reference and the regridded simulation only exist by region.
        hosts = dict(config.custom.regions) | ({config.domain.name: config.domain} if name == "scen" else {})
        chosen = {
            domain: _host(f"off-diag.steps.{name}.domain.{domain}", box, step.domain.get(domain), hosts)
            for domain, box in off_diag.domains.items()
        }
        steps[name] = step.model_copy(update={"domain": MappingProxyType(chosen)})
    return off_diag.model_copy(update={"each": off_diag.each.model_copy(update=steps)})


def _host(path: str, domain: Region, name: str | None, hosts: Mapping[str, Region]) -> str:
    """Return the key of the host that `name` means, which has to touch the domain."""
    if name is None:
        raise ConfigurationError(f"`{path}` is missing. It names the region that hosts the domain: {', '.join(hosts)}.")
    if name not in hosts:
        similar = [host for host in hosts if host.removesuffix(_SUFFIX) == name.removesuffix(_SUFFIX)]
        if len(similar) != 1:
            raise ConfigurationError(
                f"`{path}`: got {name!r}, expected one of {', '.join(hosts)}{nearest(name, hosts) or '.'} "
                "These are `custom.regions`, and for a scenario the name of `domain`."
            )
        logger.warning("`%s` is %s, which is not a region: %s is taken.", path, name, similar[0])
        name = similar[0]
    host = hosts[name]
    if not overlap(domain.box, host.box):
        raise ConfigurationError(
            f"`{path}`: the domain {domain.name} ({domain.box}) is not inside its host {host.name} ({host.box}). "
            "Choose another host, or another domain."
        )
    if missing_sides(domain.box, host.box):
        logger.warning(
            "`%s`: the domain %s (%s) sticks out of its host %s (%s): only what lies inside is diagnosed.",
            *(path, domain.name, domain.box, host.name, host.box),
        )
    return name
