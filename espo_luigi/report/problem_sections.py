"""The sections of a report about problems: flags of the products, problems of raw files, and failed jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from espo_luigi import store
from espo_luigi.report.drawings import short
from espo_luigi.report.html import Heading, Section, Table, Text, Warned
from espo_luigi.report.reading import Failed, Reader, RunView
from espo_luigi.science.display import counted, units_text

_SHOWN = ("variable", "meaning", "raised", "count", "worst", "units", "day", "lat", "lon")
_FLAG_COLUMNS = ("flag", *_SHOWN)


def read_checks(view: RunView, reader: Reader) -> dict[str, list[store.Row]]:
    """Return the tables of the health checks' flags that are there, by simulation."""
    read = {sim_id: reader.table(path, _FLAG_COLUMNS) for sim_id, path in view.flags.items()}
    return {sim_id: rows for sim_id, rows in read.items() if rows is not None}


def health_section(view: RunView, tables: Mapping[str, list[store.Row]], reader: Reader) -> Section:
    """Return the section about the health checks, of `read_checks`, and about raw files."""
    raised = sum(row["raised"] == "True" for rows in tables.values() for row in rows)
    flags, count = sum(map(len, tables.values())), f"{raised} of them" if raised else "none of them is"
    told = f"{counted(len(tables), 'simulation')} checked, {flags} flags in all, {count} raised."
    blocks: list[Any] = [Text(told if tables else "No simulation has been checked."), *reader.warned()]
    if tables:
        blocks.append(_flag_table(tables))
    names = ("action", "problem", "variable", "file", "day", "value", "count", "message")
    inputs = Reader()
    raw = {name: rows_of for name, path in view.inputs.items() if (rows_of := inputs.table(path, names)) is not None}
    rows: list[list[str]] = [[dataset, *(row[name] for name in names)] for dataset, of in raw.items() for row in of]
    columns = ["Dataset", *(name.capitalize() for name in names)]
    found = Table(columns, rows, f"{counted(len(rows), 'problem')} of raw files", folded=len(rows) > 20)
    none = Text(f"No problem was found in the raw files of {counted(len(raw), 'dataset')}.")
    return Section("Health checks", [*blocks, Heading("Raw files"), *inputs.warned(), found if rows else none])


def flag_sentence(row: store.Row) -> str:
    """Return a flag in plain words."""
    scope = f"{row['scope']}: " if row.get("scope") else ""
    said = f"{scope}{row['variable']}: {row['meaning']}"
    if not row["worst"]:
        return f"{said}: raised"
    worst = f"{row['worst']} {units_text(row['units'])}"
    return (
        f"{said}: on {_count(row)} day{'s' * (_count(row) != '1')} of a cell; the worst is {worst} on {row['day']} at "
        f"{row['lat']} °N, {row['lon']} °E"
    )


def _flag_table(tables: Mapping[str, list[store.Row]]) -> Table:
    """All flags."""
    scoped = any(row.get("scope") for rows in tables.values() for row in rows)
    first = ["Simulation", "Scope"] if scoped else ["Simulation"]
    rows = [
        [
            short(sim_id),
            *([row.get("scope") or "whole domain"] if scoped else []),
            *(_cell(row, name) for name in _SHOWN),
        ]
        for sim_id, of in tables.items()
        for row in of
    ]
    columns = ["Variable", "Flag", "Raised", "Count", "Worst", "Units", "Day", "Latitude [°N]", "Longitude [°E]"]
    return Table([*first, *columns], rows, f"All {len(rows)} flags", folded=True)


def _count(row: store.Row) -> str:
    # A damaged number is shown as it is.
    return f"{int(row['count']):,}" if row["count"].isdecimal() else row["count"] or "–"


def _cell(row: store.Row, name: str) -> str:
    if name == "raised":
        return "yes" if row[name] == "True" else "no"
    return units_text(row[name]) if name == "units" and row[name] else row[name]


def failures(view: RunView, failed: Sequence[Failed]) -> list[Any]:
    """Return the part about failed jobs and missing products."""
    missing = [made for made in view.products if not made.complete]
    if not failed and not missing:
        return [Text("Nothing failed: every product is there.")]
    blocks: list[Any] = []
    if missing:
        labels = "\n".join(f"• {made.label}" for made in missing[:15])
        more = f"\nand {len(missing) - 15} more (table below)" if len(missing) > 15 else ""
        blocks.append(Warned(f"{len(missing)} of {len(view.products)} tasks are not complete:\n{labels}{more}"))
    if failed:
        rows = [[job.label, job.words, job.log] for job in failed]
        caption = f"{counted(len(failed), 'job')} that failed or left no result"
        blocks.append(Table(["Task", "What it said", "Log"], rows, caption, folded=len(failed) > 20))
    return blocks
