"""The regions, the whole domain, chunks and periods (section `custom`), and folders (section `paths`)."""

from __future__ import annotations

import contextlib
import os
import pwd
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from espo_luigi.errors import ConfigurationError
from espo_luigi.fields import (
    ByFileName,
    Chunks,
    Integer,
    Latitudes,
    Longitudes,
    Number,
    OmitDefault,
    OutputPath,
    Period,
    Periods,
    Section,
    file_name_part,
)
from espo_luigi.science.geometry.boxes import Box
from espo_luigi.science.periods import each_period

Calendar = Literal[
    "360_day", "noleap", "365_day", "standard", "gregorian", "proleptic_gregorian", "all_leap", "366_day"
]


class Region(Section):
    """A box in degrees east and degrees north, both ends included."""

    name: Annotated[str, AfterValidator(file_name_part)] = Field(description="the region's name")
    method: Literal["bbox"] = Field(default="bbox", description="how the region is cut; only boxes are known")
    lon_bnds: Longitudes = Field(description="the western and the eastern bound, degrees east")
    lat_bnds: Latitudes = Field(description="the southern and the northern bound, degrees north")
    tile_buffer: Number = Field(
        default=0, ge=0, description="widens each bound by so many of the data's largest steps; an older name is buffer"
    )

    @property
    def box(self) -> Box:
        """The bounds, without the buffer."""
        return Box(self.lon_bnds, self.lat_bnds)


class Paths(Section):
    """The folders of a run; further keys are allowed, and have no effect."""

    model_config = ConfigDict(extra="ignore")

    tmpdir: OutputPath = Field(
        description="the folder of intermediate files, which every compute node sees; an older name is exec_workdir"
    )
    final: OutputPath = Field(
        description="the folder of products that are kept; in older files the folder above NAM_SPLIT in output"
    )
    project_catalog: OutputPath | None = Field(
        default=None, description="the project's own catalogue; by default catalog.json in `final`"
    )
    home: OutputPath | None = Field(default=None, description="the folder of the project's code")


def _land_cells_only(value: Any) -> Any:
    if value is False:
        raise ValueError(
            "expected true: land cells alone are computed, and maps are made of them at the end. Leave the key out; a "
            "region without any land, too, which would hold nothing"
        )
    return value


def check_products_folder(products: Path, temporary: Path) -> None:
    """Raise `ConfigurationError` if the folder of products is the root, a home folder, or the temporary files'."""
    final, tmpdir = products.resolve(), temporary.resolve()
    homes, why = {Path(os.environ.get("HOME") or "/").resolve()}, ""
    for user in {os.geteuid(), final.stat().st_uid if final.exists() else os.geteuid()}:
        with contextlib.suppress(KeyError):
            homes.add(Path(pwd.getpwuid(user).pw_dir).resolve())
    if final.is_relative_to(tmpdir):
        why = f"it is {'' if final == tmpdir else 'inside of '}paths.tmpdir ({tmpdir}), whose files a run deletes"
    elif final == Path("/"):
        why = "it is the root of the file system"
    elif final in homes:
        why = "it is a home folder"
    if why:
        raise ConfigurationError(
            f"paths.final = {products}: {why}. Expected a folder for the products alone: name another, such as "
            f"{(tmpdir.parent if final.is_relative_to(tmpdir) else final) / 'espo-final'}"
        )


class Subregions(Section):
    """Section `subregions` of ESPO v2."""

    n: Integer = Field(ge=1, description="the number of land cells of a slice")


class Custom(Section):
    """Section `custom`."""

    regions: ByFileName[Region] = Field(
        default={}, description="the regions that are computed one by one and concatenated, from south to north"
    )
    stack_drop_nans: Annotated[bool, BeforeValidator(_land_cells_only)] = OmitDefault(
        "true, the only value: land cells alone are computed, stacked along `loc`", True
    )
    working_chunks: Chunks = Field(
        default={"lat": 20, "lon": 20, "loc": 600, "time": -1},
        description="chunks while adjusting; given, they replace the default whole (older name: chunks)",
    )
    final_chunks: Chunks = Field(
        default={"lat": 50, "lon": 50},
        description=(
            "chunks of the products along lat and lon; along time, a chunk has four years (older name: out_chunks)"
        ),
    )
    ref_period: Period = Field(description="first and last year of the calibration period")
    sim_period: Periods = Field(
        description="first and last year of the scenarios; a list of periods leaves out the years between them"
    )
    maximal_calendar: Calendar = Field(
        default="noleap",
        description=(
            "the fullest calendar that products may have, in the order 360_day, noleap, standard, all_leap; fuller "
            "calendars are converted to it"
        ),
    )

    @property
    def stretches(self) -> tuple[tuple[str, str], ...]:
        """The periods of the scenarios: one, or several with years between them that are left out."""
        return tuple(each_period(self.sim_period))

    @property
    def span(self) -> tuple[str, str]:
        """The first and the last year of the scenarios."""
        return self.stretches[0][0], self.stretches[-1][1]
