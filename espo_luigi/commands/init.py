"""``espo init``: writes a folder to start from: a copy of files that are shipped, or a translation of older files."""

from __future__ import annotations

import functools
import json
import operator
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from datetime import timedelta
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from espo_luigi.commands.views import say
from espo_luigi.files import leads_out, read_text, write_new

if TYPE_CHECKING:
    from espo_luigi.catalog import Asset

_STARTS = Path(__file__).parent / "starts"  # links to the repository's luigi.cfg and config/, and the READMEs
# In luigi.cfg of a folder, whose configuration lies beside it, and in the repository's.
_BESIDE = "config = config.yml paths.yml"
_OF_DEMO = "config = config/demo/config.yml config/demo/paths.yml config/demo/outcomes.yml"
_DEMOS_WORKDIR = "workdir = espo-demo/run"
_STARTS_AND_WORKDIRS = {
    "demo": _DEMOS_WORKDIR,
    "demo-downscaled": "workdir = espo-demo-downscaled/run",
    "demo-humid": "workdir = espo-demo-humid/run",
    "espo-g6": "workdir = espo-work",
    "espo-v2": "workdir = espo-work",
    "v2-demo": "workdir = espo-v2-demo/run",
}


def files_of(start: str) -> dict[str, str]:
    """Return the names and texts of the files that ``espo init --from START`` writes."""
    files = [path for path in sorted((_STARTS / start).iterdir()) if path.suffix in (".yml", ".csv")]
    texts = {path.name: path.read_text("utf-8") for path in files}
    beside = f"{_BESIDE} outcomes.yml" if "outcomes.yml" in texts else _BESIDE
    settings = (_STARTS / "luigi.cfg").read_text("utf-8").replace(_OF_DEMO, beside)
    settings = settings.replace(_DEMOS_WORKDIR, _STARTS_AND_WORKDIRS[start])
    if (resources := _STARTS / start / "luigi.cfg").exists():
        settings = f"{settings}\n{resources.read_text('utf-8')}"
    return {"README.md": (_STARTS / f"{start}.md").read_text("utf-8"), "luigi.cfg": settings, **texts}


# Options of luigi.cfg, in any section, that run something, or name a file that may.
_RUN = {"setup", "python", "notify", "environment", "extra", "step_options", "worker_jobs", "profile"}
_RUN |= {"logging_conf_file"}


def translation_of(old: Path) -> tuple[dict[str, str], int, list[str]]:
    """Return names and texts of files that say what the configuration files of a folder say, in current keys.

    Also the mode that they get, as none may be readable by more people than before, and the lines of luigi.cfg that
    run something: another person may have written them, so they are commented out. The files are those that the
    folder's luigi.cfg names, or config.yml and paths.yml. Environment variables stay as they are; files of properties
    are copied; other files that the folder holds are named by their full paths.

    Raises
    ------
    ConfigurationError
        A file is missing, a link out of the folder, cannot be read, or asks for something that is not done here.
    """
    from espo_luigi.config.dialects import drop_without_effect, translate
    from espo_luigi.config.load import folders_of, merged
    from espo_luigi.config.usual import NEWEST
    from espo_luigi.errors import ConfigurationError
    from espo_luigi.fields import find_in
    from espo_luigi.tasks.context import paths_in

    settings = _within(old, old / "luigi.cfg")
    parser = ConfigParser(interpolation=None)
    try:
        said = read_text(settings, encoding="utf-8-sig") if os.path.lexists(settings) else ""
        parser.read_string(said, str(settings))
    except (OSError, UnicodeDecodeError, ConfigParserError) as error:
        raise ConfigurationError(f"{settings} cannot be read: {error}. Correct it, or move it away.") from error
    named = paths_in(parser.get("espo", "config", fallback="")) or (Path("config.yml"), Path("paths.yml"))
    try:
        files = [find_in(str(name), (old.absolute(),)) for name in named]
    except ValueError as error:
        raise ConfigurationError(f"`[espo] config` of {settings}: {error}.") from error
    files = [_within(old, path) for path in files if path.exists() or path.name != "paths.yml"]
    content, written, _, read = merged(files)
    translate(content, written)
    drop_without_effect(content)
    start = "espo-v2" if "subregions" in content else "espo-g6"
    texts, run = {"luigi.cfg": files_of(start)["luigi.cfg"]}, list[str]()
    if parser.has_option("espo", "config"):
        kept, run = _without_commands(said)
        texts["luigi.cfg"] = re.sub(
            r"(?ms)^\[espo\].*?(?=^\[|\Z)",
            lambda section: re.sub(r"(?mi)^config *[=:].*(?:\n[ \t]+\S.*)*", _BESIDE, section[0]),
            kept,
        )
    copied = set(_name_files(content, folders_of(read), texts, old))
    mode = functools.reduce(
        operator.and_, (path.stat().st_mode for path in {settings, *read, *copied} if path.exists())
    )
    paths: dict[str, Any] = {section: content.pop(section) for section in ("paths", "demo") if section in content}
    content.setdefault("usual", NEWEST)
    return texts | {"config.yml": _as_yaml(content), "paths.yml": _as_yaml(paths)}, mode & 0o666, run


def _within(folder: Path, path: Path) -> Path:
    """Return a file of a folder. Raises ConfigurationError if it is a link out of it, which may lead to a secret."""
    from espo_luigi.errors import ConfigurationError

    if path.absolute().is_relative_to(folder.absolute()) and (target := leads_out(path, folder)):
        raise ConfigurationError(
            f"{path} is a link to {target}, outside of {folder}; expected a file. Nothing was copied. Put a "
            "copy in the link's place if other people may read it"
        )
    return path


def _without_commands(text: str) -> tuple[str, list[str]]:
    """Return luigi.cfg with all lines commented out that run something, and these lines."""
    lines, run, is_value = list[str](), list[str](), False
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        # Values go on in indented lines, past empty ones and comments.
        if not (is_value and (line[:1] in ("", " ", "\t", "#", ";"))):
            option = re.match(r"\s*([^=:]+?)\s*[=:]", line)
            is_value = option is not None and option[1].lower().replace("-", "_") in _RUN
        if is_value and line.strip():
            run.append(line)
        lines.append(f"# {line}" if is_value and line.strip() else line)
    return "\n".join(lines), run


def _name_files(content: dict[str, Any], folders: tuple[Path, ...], texts: dict[str, str], old: Path) -> Iterator[Path]:
    """Have the content name files so that they are found from anywhere; adds those of properties to the texts.

    Yields the files that it has read.
    """
    from espo_luigi.config.load import properties_file
    from espo_luigi.config.yaml_files import read_yaml
    from espo_luigi.fields import find_file

    def full(name: Any) -> Any:
        if not isinstance(name, str) or "$" in name or not (path := find_file(name, folders)).is_file():
            return name
        return str(path)

    for key, value in content.items():
        if isinstance(value, dict):
            yield from _name_files(value, folders, texts, old)
        elif key in ("properties", "shape", "tas_src"):
            content[key] = full(value)
        elif key in ("data_catalogs", "module"):
            content[key] = [full(name) for name in value] if isinstance(value, list) else full(value)
        if key == "properties" and isinstance(content[key], str) and "$" not in content[key]:
            path = properties_file(key, str(value), folders)
            read_yaml(_within(old, path))  # refuses what is no configuration
            text = read_text(path)
            yield path
            if path.name not in ("config.yml", "paths.yml") and texts.setdefault(path.name, text) == text:
                content[key] = path.name


def _as_yaml(content: Mapping[str, Any]) -> str:
    import yaml

    from espo_luigi.config.dialects import owned

    dumper = type("_Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda self, value: True})
    return str(yaml.dump(owned(content), Dumper=dumper, sort_keys=False, allow_unicode=True, width=120))


# By variable, the indicators of a box.
_INDICATORS = {
    "tasmax": ("txx", "su", "id"),
    "tasmin": ("tnn", "fd", "tr"),
    "pr": ("prcptot", "rx1day", "rx5day", "cdd"),
    "tas": ("gsl",),
}


def _calibration(files: Iterable[Iterable[Asset]]) -> tuple[int, int]:
    """Return 1991 and 2020, or the last 30 years, if there are so many, that the files of each variable have in full.

    A year in which files end in December counts: those of Daymet end on 30 December of leap years.
    """
    starts, ends = [], []
    for rows in map(list, files):
        start, end = min(row.start for row in rows if row.start), max(row.end for row in rows if row.end)
        day = end - timedelta(days=1)
        starts.append(start.year + (start.timetuple().tm_yday > 1))
        ends.append(day.year - (day.month < 12))
    first, last = max(starts), min(ends)
    return (1991, 2020) if first <= 1991 and last >= 2020 else (max(first, last - 29), last)


def box_of(
    folder: Path, box: str, reference: Path, simulations: Path, experiments: str, variables: str
) -> dict[str, str]:
    """Return names and texts of the files of a run on a box, with the references' years and the variables' indicators.

    Raises
    ------
    CatalogError
        If a catalogue cannot be read.
    ParameterError
        If the box is none, or a catalogue lacks a variable or an experiment, or the reference's has several sources.
    """
    from espo_luigi.catalog.read import read_catalogue
    from espo_luigi.config.usual import NEWEST
    from espo_luigi.errors import ParameterError, not_one_of

    try:
        south, north, west, east = (float(number) for number in box.split(","))
        if not (-90 <= south < north <= 90 and -360 <= west < east <= 360 and east - west <= 360):
            raise ValueError
    except ValueError:
        raise ParameterError(f"--box {box!r}: expected S,N,W,E in degrees, such as 45,46,-74.5,-73") from None
    wanted, chosen = variables.split(","), experiments.split(",")
    raw, rows = read_catalogue(simulations), [row for row in read_catalogue(reference) if row.start and row.end]
    sources = sorted({row.columns.get("source", "") for row in rows if {*_daily_of(row, wanted)} & {*wanted}})
    if len(sources) > 1:
        raise ParameterError(f"--reference {reference}: got {', '.join(sources)}; expected a catalogue of one of them")
    for option, asked, known in (
        ("variables", wanted, {one for row in rows for one in _daily_of(row, wanted)}),
        ("variables", wanted, {one for row in raw for one in _daily_of(row, wanted)}),
        ("experiments", chosen, {row.columns.get("experiment", "") for row in raw} - {""}),
    ):
        if lacking := [one for one in asked if one not in known]:
            raise ParameterError(not_one_of(option, lacking[0], sorted(known)))
    first, last = _calibration([[row for row in rows if one in _daily_of(row, wanted)] for one in wanted])
    with_range = {"tasmax", "tasmin"} <= {*wanted}
    adjusted = ["dtr" if with_range and one == "tasmin" else one for one in wanted]
    text = Template((_STARTS / "box.yml").read_text("utf-8")).substitute(
        project=json.dumps(folder.absolute().name),
        lon_bnds=[west, east],
        lat_bnds=[south, north],
        lon=round((west + east) / 2, 4),
        lat=round((south + north) / 2, 4),
        first=first,
        last=last,
        reference=json.dumps(str(reference.absolute())),
        simulations=json.dumps(str(simulations.absolute())),
        source=json.dumps(sources[0]),
        experiments=json.dumps(chosen),
        frequencies=", ".join(f"{one}: D" for one in dict.fromkeys([*wanted, *adjusted])),
        adjusted=", ".join(f"{one}: {{}}" for one in adjusted),
        indicators=json.dumps([f"etccdi.{one}" for name in wanted for one in _INDICATORS.get(name, ())]).replace(
            '"', ""
        ),
        usual=NEWEST,
    )
    settings = files_of("demo")["luigi.cfg"].replace(f"{_BESIDE} outcomes.yml", "config = config.yml")
    return {"luigi.cfg": settings.replace(_DEMOS_WORKDIR, "workdir = espo-work"), "config.yml": text}


def _daily_of(row: Asset, wanted: Iterable[str]) -> list[str]:
    """Return a file's variables, and the wanted variables that its hours make."""
    from espo_luigi.catalog.search import SUB_DAILY, made_of

    is_of_hours = row.columns.get("xrfreq") in SUB_DAILY
    return [*row.variables, *(one for one in wanted if is_of_hours and {*made_of(one)} & {*row.variables})]


def write_new_files(folder: Path, texts: Mapping[str, str], mode: int = 0o666) -> list[Path]:
    """Write texts into `folder`, which may exist, by their names, with a mode; return their paths.

    Raises
    ------
    FileExistsError
        If any of the files exists; nothing is written then.
    """
    if existing := [name for name in texts if os.path.lexists(folder / name)]:
        raise FileExistsError(
            f"{folder} already has {', '.join(existing)}; nothing was written. Name a new folder, or move these files"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_new(folder / name, text, mode)
    return [folder / name for name in texts]


@click.command(epilog="Example: espo init demo")
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option(
    "--import",
    "old",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder whose configuration files, of ESPO-G 2024 or of ESPO v2, are written anew with current keys.",
)
@click.option(
    "--from",
    "start",
    type=click.Choice(list(_STARTS_AND_WORKDIRS)),
    default="demo",
    show_default=True,
    help="The built-in example, that of five other variables, that of ESPO v2, or the values of ESPO-G6 or ESPO v2.",
)
@click.option("--box", metavar="S,N,W,E", help="A run on a box, in degrees, with the indicators of its variables.")
@click.option("--reference", type=click.Path(path_type=Path), help="The reference's catalogue, of --box.")
@click.option(
    "--simulations",
    type=click.Path(path_type=Path),
    default="simulation.json",
    show_default=True,
    help="The simulations' catalogue, of --box.",
)
@click.option("--experiments", default="ssp245,ssp585", show_default=True, help="Those of --box.")
@click.option("--variables", default="tasmax,tasmin,pr", show_default=True, help="Those of --box.")
@click.pass_context
def init(
    asked: click.Context,
    folder: Path,
    start: str,
    old: Path | None,
    box: str | None,
    reference: Path | None,
    **of_box: Any,
) -> None:
    """Write a folder to start from; it overwrites nothing."""
    given = {name for name in asked.params if asked.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if len(given & {"start", "old", "box"}) > 1:
        raise click.UsageError("expected one of --from, --import and --box.")
    if box is None and (alone := sorted(given & {"reference", *of_box})):
        raise click.UsageError(f"expected --box with {', '.join(f'--{name}' for name in alone)}.")
    if box is not None and reference is None:
        raise click.UsageError("expected --reference with --box.")
    texts, mode, run = (files_of(start), 0o666, list[str]()) if old is None else translation_of(old)
    if box and reference:
        texts = box_of(folder, box, reference, **of_box)
    for path in write_new_files(folder, texts, mode):
        say(path)
    if run:
        say(f"Commented out in luigi.cfg, as these lines of {old} run something as you; read them, then remove `# `:")
        for line in run:
            say(f"  {line}")
    enter = "" if folder == Path() else f"`cd {shlex.quote(str(folder))}`, then "
    say(f"Next: {enter}`espo plan`{'; README.md has the other steps' if 'README.md' in texts else ''}.")
