"""Archives by name: what their files call things, and what these do not say. Users may write further ones."""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

import xarray as xr
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from espo_luigi.config.messages import explain
from espo_luigi.config.searching import ZONE, Accumulation
from espo_luigi.config.yaml_files import named_file, read_yaml
from espo_luigi.errors import ConfigurationError
from espo_luigi.fields import Named, OmitDefault, Section, Unit

FOLDER = Path(__file__).parent / "archives"

_AS_LIST = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)


def _pattern(text: str) -> str:
    """Return a file's name with {fields} and `*` as a regular expression; a {date} has eight digits."""
    digits = {"date": "[0-9]{8}"}
    fields = re.sub(r"\\{(\w+)\\}", lambda field: f"(?P<{field[1]}>{digits.get(field[1], '[^_]+')})", re.escape(text))
    return fields.replace(r"\*", ".*")


def _checked(text: str) -> str:
    if text.count("*") > 3:  # more take very long
        raise ValueError("expected three `*` at most")
    try:
        re.compile(_pattern(text))
    except re.error as error:
        raise ValueError(f"expected names of {{fields}}, each once ({error})") from error
    return text


class Preset(Section):
    """An archive: a file of `espo_luigi/catalog/archives`, or a user's."""

    source: str = OmitDefault("the dataset's name, unless names of files have a field {source}", "")
    columns: Named[str] = OmitDefault("further columns of the catalogue", {})
    files: Annotated[tuple[Annotated[str, AfterValidator(_checked)], ...], _AS_LIST] = OmitDefault(
        "names of files without their ending, with {columns} of the catalogue and `*`; {date} is a file's only day",
        (),
    )
    names: Named[Annotated[tuple[str, ...], _AS_LIST]] = OmitDefault(
        "by variable or coordinate, its name in the files: NAME, or NAME in FILE; `*` stands for any text", {}
    )
    units: Named[Unit] = OmitDefault("by variable, the units that take the place of those in the files", {})
    accumulation: Accumulation | Named[Accumulation] | None = OmitDefault(
        "what amounts of hours are sums of: of the day since 00 UTC, or of the step; also by variable", None
    )
    day: Literal[""] | Annotated[str, ZONE] = OmitDefault("the time zone of days: UTC, UTC-05:00, local", "")
    leap_years_lack: Annotated[str, Field(pattern=r"^(\d\d-\d\d)?$")] = OmitDefault(
        "the day, as 12-31, that files lack in leap years", ""
    )

    def described(self, path: str) -> dict[str, str]:
        """Return the fields in a file's name, by the first pattern that fits; empty if none does."""
        stem = re.sub(r"(\.nc4?|\.zarr|\.zarr\.zip)+$", "", Path(path).name)
        fitting = (re.fullmatch(_pattern(text), stem) for text in self.files)
        return next((match.groupdict() for match in fitting if match), {})

    def options(self, path: str) -> dict[str, Any]:
        """Return how a file is to be opened: without decoding times where its name has the date."""
        return {"decode_times": False} if "date" in self.described(path) else {}

    def opened(self, ds: xr.Dataset, path: str) -> xr.Dataset:
        """Return an opened file with the usual names and the date in its name; lazy."""
        stem, names = Path(path).name, dict[str, str]()
        for by_file in (False, True):  # a name in certain files counts before the same name in any file
            for name, held in ((name, held) for name, listed in self.names.items() for held in listed):
                wanted, _, where = held.partition(" in ")
                if bool(where) is by_file and fnmatchcase(stem, where or "*"):
                    there = [str(one) for one in (*ds.variables, *ds.dims) if fnmatchcase(str(one), wanted)]
                    others = {one: other for one, other in names.items() if not there or other != name}
                    names = others | dict.fromkeys(there[:1], name)
        ds = ds.rename({held: name for held, name in names.items() if held != name})
        if date := self.described(path).get("date"):
            time = xr.DataArray([datetime.strptime(date, "%Y%m%d")], dims="time").astype("datetime64[ns]")
            ds = ds if "time" in ds.dims else ds.drop_vars("time", errors="ignore").expand_dims("time")
            return ds.assign_coords(time=time)
        return ds

    def accumulations(self, variables: Iterable[str]) -> dict[str, Accumulation]:
        """Return what amounts of variables are sums of, of those that the archive has sums of."""
        of = self.accumulation or {}
        return {name: word for name in variables if (word := of if isinstance(of, str) else of.get(name))}

    def days_lacking(self, years: Iterable[int]) -> list[str]:
        """Return the days (YYYY-MM-DD) that files may lack."""
        return [f"{year}-{self.leap_years_lack}" for year in years if self.leap_years_lack and calendar.isleap(year)]


def packaged() -> list[str]:
    """Return the names of the archives that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yml"))


def load_preset(name: str) -> Preset:
    """Read a preset of the package by its name, or a user's by its path.

    Raises
    ------
    ParameterError
        If there is none.
    ConfigurationError
        If the file cannot be read, or a key or a value is not allowed.
    """
    file = read_yaml(named_file("as", name, FOLDER))
    try:
        return Preset.model_validate(file.content)
    except ValidationError as error:
        raise ConfigurationError(explain(error, Preset, {}, file.places, f"The preset {file.path}")) from error
