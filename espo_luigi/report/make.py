"""Making a report: the page, its figures as files, and the table of improvements."""

from __future__ import annotations

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from textwrap import shorten
from typing import Any

import xarray as xr

from espo_luigi import store
from espo_luigi.driver.status import cpu_time
from espo_luigi.files import read_object, write_new
from espo_luigi.jobs.accounts import read_accounts, submissions
from espo_luigi.jobs.energy import Power, in_words
from espo_luigi.jobs.resources import GIB, render_size
from espo_luigi.publication.release import RELEASE
from espo_luigi.replacing import Judge, by_digest, by_manifest, check_ours, digest_of_ours, noted_beside, write_manifest
from espo_luigi.report import distributions, first_screen, job_use, problem_sections
from espo_luigi.report.changes import PAGE, changes_sections, write_changes
from espo_luigi.report.dependence import together_section
from espo_luigi.report.drawings import Drawing, with_pictures
from espo_luigi.report.html import Code, Heading, Link, Section, Table, Text, Warned, render_page
from espo_luigi.report.improvement import (
    PUBLISHED,
    PUBLISHED_ROW,
    improvement_section,
    read_compared,
    uncalibrated_section,
)
from espo_luigi.report.job_use import Job, accounted, by_rule
from espo_luigi.report.maps import maps_section
from espo_luigi.report.members import flags_section, members_section, read_flags, treated_section
from espo_luigi.report.reading import Made, Reader, RunView, read_failures, read_jobs, read_records
from espo_luigi.science.display import counted
from espo_luigi.store.disk import disk_errors
from espo_luigi.store.inventory import size_bytes
from espo_luigi.store.publish import written_aside
from espo_luigi.store.table import page_text, table_text

logger = logging.getLogger(__name__)

WANTED_PERIODS = "1991-2020 to 2071-2100"
# The rule that makes the page is at work while it is made.
_OURSELVES = "Report"
_MAKER = "espo report"
_OF_CHANGES = "Changes of the indicators over simulations: maps, plumes, tables by region, and numbers to download"
_OF_EXPLORER = "Explore the maps, and the future of each place"
PARTS = {
    "glance": "At a glance",
    "changes": "What changes",
    "quality": "How good it is",
    "doubts": "What not to trust",
    "run": "The run",
}


def write_report(view: RunView, out: Path, marker: store.Marker | None = None, processes: int = 0) -> None:
    """Write the page `out`; so many forked processes draw its figures, or, if 0, this process.

    Beside it are `…-figures/` (PNG), `…-improvement.csv` and, of ensembles, the page `…-changes/`; the page has a list
    of what lacks.

    Raises
    ------
    StoreError
        If anything there is no report's, or has changed since, or the disk refuses.
    """
    judges = _judges(out)
    check_report_replaceable(out)
    changes = changes_sections(view) if view.ensembles else ([], {})
    if view.ensembles:
        with written_aside(changes_folder(out), judge=by_manifest(_MAKER)) as partial:
            write_changes(view, changes, partial, processes)
            write_manifest(partial, _MAKER)
    undrawn, shares = make_sections(view, out, changes[0])
    parts = with_pictures(undrawn, processes)
    figures, *others = judges
    title = f"Report of a production: {counted(len(view.simulations), 'simulation')}, adjusted to {view.reference}"
    first = next((path for paths in view.archives.values() for path in paths if path.exists()), None)
    attrs = ((first and Reader().dataset(first, load=False)) or xr.Dataset()).attrs
    notes = shorten(str(attrs.get("Notes", "")), 240, placeholder=" …")
    made = f"Made by espo_luigi on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC. {notes}".strip()
    page = page_text(render_page(title, made, parts, PARTS), marker)
    texts = dict(zip(others, (table_text(*improvement_rows(shares)), page), strict=True))
    # The former ones, too: this process may be killed before it has replaced them.
    beside = {
        path.name: [sha256(text.encode()).hexdigest(), *digest_of_ours(path, judges[path])]
        for path, text in texts.items()
    }
    with written_aside(figures, judge=judges[figures]) as partial:
        partial.mkdir(parents=True)
        for picture in (shown for part in parts for shown in part.pictures):
            (partial / f"{picture.name}.png").write_bytes(picture.png)
        write_manifest(partial, _MAKER, beside)
    for path, text in texts.items():
        with written_aside(path, judge=judges[path]) as partial:
            write_new(partial, text)
    logger.info("The report is %s (%.1f MB)", out, out.stat().st_size / 1e6)


def check_report_replaceable(out: Path) -> None:
    """Raise `StoreError` if a report `out` would replace what no report has put there."""
    with disk_errors(out, "write"):
        for path, judge in {**_judges(out), changes_folder(out): by_manifest(_MAKER)}.items():
            check_ours(path, judge)


def changes_folder(out: Path) -> Path:
    """Return the folder of the page about changes."""
    return out.with_name(f"{out.stem}-changes")


def _judges(out: Path) -> dict[Path, Judge]:
    """How the figures, the table and the page are known: by the list among the figures."""
    figures = out.with_name(f"{out.stem}-figures")
    beside = (out.with_name(f"{out.stem}-improvement.csv"), out)
    noted = {path: by_digest(noted_beside(figures, path.name) or ()) for path in beside}
    return {figures: by_manifest(_MAKER), **noted}


def make_sections(
    view: RunView, out: Path = Path("report.html"), changes: Sequence[Section] = ()
) -> tuple[list[Section], dict[tuple[str, str], xr.DataArray]]:
    """Return the sections, each of a part, their figures not yet drawn, and the shares of improved cells.

    `out` is the page: links lead to other files from there. `changes` are the sections of the page about changes; the
    shares are by domain and simulation.
    """
    jobs = [job for job in read_jobs(view.workdir) if job.rule != _OURSELVES]
    failed = [job for job in read_failures(view.workdir, view.engine) if job.label.split()[:1] != [_OURSELVES]]
    improved, shares = improvement_section(view)
    summaries, reader = distributions.read_summaries(view)
    compared, comparing = read_compared(view)
    of_flags, of_checks, of_changes = Reader(), Reader(), Reader()
    flagged, checks = read_flags(view, of_flags), problem_sections.read_checks(view, of_checks)
    biases = first_screen.biases_of(view, Reader())
    doubts = first_screen.doubts_of(view, checks, flagged, compared, biases)
    kept = distributions.change_section(summaries, reader, WANTED_PERIODS, view.table)
    change = first_screen.change_of(changes, of_changes)
    link = Link(_OF_CHANGES, f"{changes_folder(out).name}/{PAGE}")
    explorer = view.explorer and Section("", [Link(_OF_EXPLORER, os.path.relpath(view.explorer, out.parent))])
    parts = {
        "glance": [*([explorer] if explorer else []), first_screen.opening(view, biases, change, doubts)],
        "changes": [
            *([Section("Indicators", [link, *of_changes.warned(), *changes[0].blocks])] if changes else []),
            kept,
            *members_section(view),
        ],
        "quality": [
            improved,
            *uncalibrated_section(compared, comparing),
            *together_section(compared),
            maps_section(view, shares),
            distributions.series_section(summaries, reader, view.period, view.table),
            *treated_section(view),
            problem_sections.health_section(view, checks, of_checks),
        ],
        "doubts": [
            first_screen.ranked_section(doubts),
            Section("Missing and failed", problem_sections.failures(view, failed)),
            *flags_section(flagged, of_flags, view.table),
        ],
        "run": [inputs_section(view, out), replace(run_section(view, jobs), folded=True)],
    }
    return [replace(section, part=key) for key, of in parts.items() for section in of], shares


def _is_new(measured: Sequence[str]) -> bool:
    """Whether there are properties, and none of them has published values."""
    return bool(measured) and PUBLISHED.keys().isdisjoint(measured)


def improvement_rows(shares: Mapping[tuple[str, str], xr.DataArray]) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns and rows of the table of improvements: domain, simulation, and each property."""
    measured = [str(name) for share in shares.values() for name in share["properties"].values]
    names = list(dict.fromkeys(measured if _is_new(measured) else [*PUBLISHED, *measured]))
    published = {name: f"{PUBLISHED[name][0]:.2f}" if name in PUBLISHED else "" for name in names}
    rows = [{"domain": "Magtogoek", "simulation": PUBLISHED_ROW, **published}]
    rows = [] if _is_new(measured) else rows
    for (domain, sim_id), share in shares.items():
        known = {
            str(name): f"{float(value):.6g}"
            for name, value in zip(share["properties"].values, share.values, strict=True)
        }
        rows.append({"domain": domain, "simulation": sim_id, **{name: known.get(name, "") for name in names}})
    return ["domain", "simulation", *names], rows


def inputs_section(view: RunView, out: Path) -> Section:
    """Return the section about the run's inputs, versions and products."""
    release, path = read_object(view.final / RELEASE) or {}, os.path.relpath(view.final / RELEASE, out.parent)
    named = f"Release {release.get('version')} of {release.get('date')}"
    released = [Link(named, path)] if {"version", "date"} <= {*release} else []
    pools = {pool: ids for pool, ids in view.pools.items() if len(ids) > 1}
    pooled = {sim_id for ids in pools.values() for sim_id in ids}
    simulations = [line for pool, ids in pools.items() for line in (f"{pool}:", *(f"• {sim_id}" for sim_id in ids))]
    simulations += [sim_id for sim_id in view.simulations if sim_id not in pooled]
    rows = [
        ["Reference", view.reference],
        ["Simulations", "\n".join(simulations)],
        ["Calibration period", "-".join(map(str, view.period))],
        ["Domains of the diagnostics", ", ".join(view.domains) or "none"],
        ["Configuration", f"{', '.join(map(str, view.config_files))} (hash {view.config_hash})"],
        ["Jobs ran on", view.engine],
        ["Products", str(view.final)],
        ["Records and logs", str(view.workdir)],
    ]
    blocks = [Table(["What", "Value"], rows, "The run"), *released, *provenance_table(view), *products_table(view)]
    return Section("Inputs, versions and products", blocks, folded=True)


def run_section(view: RunView, jobs: Sequence[Job]) -> Section:
    """Return the section about the jobs' use, by node and by rule, and about sufficient resources."""
    records, trouble = read_records(view.workdir)
    blocks: list[Any] = [Warned(f"Records of submissions cannot be read: {trouble}")] if trouble else []
    known = submissions(record for record in records if record.rule != _OURSELVES)
    jobs = accounted(jobs, known, read_accounts(view.engine, known))
    if not jobs:
        return Section("Jobs", [*blocks, Warned(f"No job has left a result in {view.workdir}.")])
    again_by = job_use.retries(records)
    rows = [[rule, cause, str(count)] for (rule, cause), count in sorted(again_by.items())]
    again: Any = (
        Table(["Rule", "Cause", "Submissions"], rows, "Tried again, by cause")
        if rows
        else Text("No job was submitted again.")
    )
    return Section(
        "Jobs",
        [
            *blocks,
            Text(_spent(jobs)),
            Text(_energy(jobs, view.power)),
            Drawing("timeline", "When each job worked, by node", job_use.timeline, [jobs]),
            Drawing("resources", "Asked for, and the most that was used, by rule", job_use.requested_and_used, [jobs]),
            _rule_table(jobs),
            again,
            Heading("Resources that would have sufficed, with 20 % to spare"),
            Text(
                "For luigi.cfg: the most that any job of the rule took in this run, on these nodes, and a fifth more. "
                "Rules whose Dask workers were jobs of their own, or on several nodes, are left out: what these took "
                "is in no figure of this section."
            ),
            Code(job_use.rule_blocks(jobs)),
        ],
    )


def _spent(jobs: Sequence[Job]) -> str:
    """The jobs' total use, and who counted it."""
    nodes, hours = {job.node for job in jobs}, sum(job.seconds * job.cpus for job in jobs) / 3600
    used = sum(job.cpu_seconds for job in jobs) / 3600
    said = sum(job.accounted for job in jobs)
    counters = "as the jobs have counted themselves, of the last run of each task"
    if said:
        others = f"; the other {len(jobs) - said} {counters}" if said < len(jobs) else ""
        counters = f"{said} of them by the scheduler's accounts, with the runs that failed{others}"
    return (
        f"{counted(len(jobs), 'job')} on {counted(len(nodes), 'node')}, {cpu_time(used)} of CPU time of "
        f"{cpu_time(hours)} reserved, {counters}. Memory is the most that a job and its processes held at once, CPUs "
        "the mean over the job; waiting is from the order to the start."
    )


def _energy(jobs: Sequence[Job], power: Power) -> str:
    """The jobs' energy: measured where the scheduler does, otherwise an estimate from the CPU time."""
    hours = sum(job.cpu_seconds for job in jobs if not job.energy_joules) / 3600
    return f"Energy: {in_words(power, hours, sum(job.energy_joules for job in jobs))}."


def _rule_table(jobs: Sequence[Job]) -> Table:
    rows = []
    for rule, of in by_rule(jobs).items():
        waits = [job.waited for job in of if job.waited is not None]
        cpus = f"{max(job.cpus_used for job in of):.1f} of {max(job.cpus for job in of)}"
        peak, asked = (max(getattr(job, name) for job in of) / GIB for name in ("peak_memory_bytes", "memory_bytes"))
        longest = f"{_amount(max(job.seconds for job in of) / 60)} of {max(job.time_minutes for job in of)}"
        hours, wait = _amount(sum(job.seconds for job in of) / 3600), _amount(max(waits) / 60) if waits else "–"
        failed = str(sum(not job.succeeded for job in of))
        rows.append([rule, str(len(of)), failed, cpus, f"{peak:.2f} of {asked:.1f}", longest, hours, wait])
    columns = ["Rule", "Jobs", "Failed", "CPUs used", "Memory used [GiB]", "Longest [min]"]
    return Table([*columns, "Hours in all", "Longest wait [min]"], rows, "Used, of what was asked for")


def _amount(value: float) -> str:
    """A number of minutes or hours: jobs take seconds or days."""
    return f"{value:,.1f}" if value >= 1 else f"{value:.2f}" if value >= 0.005 else "< 0.01"


def products_table(view: RunView) -> list[Any]:
    """Return how many products of each rule are there, and, folded, each with its size and path."""
    rules: dict[str, list[Made]] = defaultdict(list)
    for made in view.products:
        rules[made.rule].append(made)
    rows, files = [], []
    for rule, of in rules.items():
        sizes = {path: size_bytes(path) or 0 for made in of for path in made.paths}
        folder = os.path.commonpath([str(path.parent) for path in sizes]) if sizes else ""
        there = sum(made.complete for made in of)
        rows.append([rule, str(len(of)), str(there), render_size(sum(sizes.values())), folder])
        for made in of:
            there_too = "yes" if made.complete else "no"
            files += [[made.label, there_too, render_size(sizes[path]), str(path)] for path in made.paths]
    all_files = f"All {len(files)} products with sizes and paths"
    return [
        Table(["Rule", "Tasks", "Complete", "Size", "Folder"], rows, "Products, by rule"),
        Table(["Task", "Complete", "Size", "Path"], files, all_files, folded=True),
    ]


def provenance_table(view: RunView) -> list[Any]:
    """Return the versions and configurations that the products name, with how many products each has."""
    markers = [store.read_marker(path) for made in view.products for path in made.paths if made.complete]
    versions: dict[str, Counter[str]] = defaultdict(Counter)
    for marker in markers:
        if marker is not None:
            versions["configuration"][marker.config_hash] += 1
            for name, version in marker.versions.items():
                versions[name][version] += 1
    rows = [
        [name, ", ".join(f"{value} ({count} products)" if len(of) > 1 else value for value, count in of.items())]
        for name, of in versions.items()
    ]
    several = [name for name, of in versions.items() if len(of) > 1]
    blocks: list[Any] = [Table(["What", "Version"], rows, "Versions with which the products were made")]
    if several:
        blocks.append(Warned(f"Products were made with different {', '.join(several)}."))
    return blocks
