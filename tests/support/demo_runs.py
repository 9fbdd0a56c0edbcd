"""Writes the configuration of the demo in small into a folder, and makes it this process's configuration."""

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from luigi.configuration import get_config
from luigi.task_register import Register
from small_demo import SMALL_CONFIG

from espo_luigi.config.load import merged
from espo_luigi.config.yaml_files import merge
from espo_luigi.driver.engines import close_engines
from espo_luigi.tasks.context import forget

CONFIG = Path(__file__).parent.parent.parent / "config" / "demo"
# Changes for `write_config`: the whole domain is a single region, in which both diagnosed domains lie.
ONE_REGION: dict[str, Any] = {
    "custom__regions": {"south": {"name": "south", "method": "bbox", "lon_bnds": [-67, -64.5], "lat_bnds": [45, 48]}},
    **{
        f"off_DASH_diag__steps__{step}__domain": dict.fromkeys(("Highland", "Lowland"), "south")
        for step in ("ref", "sim")
    },
}


def content_of(file: Path) -> dict[str, Any]:
    """The content of a configuration file, merged over its base, under current names."""
    return dict(merged([file])[0])


def copy_properties(folder: Path) -> None:
    """Copy the definitions of properties of both productions into a folder."""
    for production in ("espo-g6", "espo-v2"):
        for properties in (CONFIG.parent / production).glob("*properties*.yml"):
            shutil.copy(properties, folder)


def of_years(first: int, last: int, *known: int) -> dict[str, Any]:
    """Changes for `write_config`: simulations of these years, and a calibration on the first to the last known."""
    dates = {"health_checks__start_date": f"{first}-01-01", "health_checks__end_date": f"{last}-12-30"}
    calibration = {"custom__ref_period": [*map(str, known)]} if known else {}
    return {"custom__sim_period": [str(first), str(last)], **dates, **calibration}


def write_config(folder: Path, raw: Path, **changes: object) -> list[Path]:
    """Write the configuration of the demo in small for `folder`, with dotted keys replaced; return its files.

    A list, such as the years of a period, is replaced wherever it stands.
    """
    config = merge(content_of(CONFIG / "config.yml"), yaml.safe_load(SMALL_CONFIG.read_text()))
    paths = yaml.safe_load((CONFIG / "paths.yml").read_text())
    text = yaml.safe_dump(paths, sort_keys=False).replace("espo-demo/raw", str(raw)).replace("espo-demo", str(folder))
    for key, value in changes.items():
        *parents, last = key.split("__")
        part = functools.reduce(lambda part, name: part[name.replace("_DASH_", "-")], parents, config)
        if isinstance(value, list) and isinstance(part.get(last), list):
            for same in list(lists_like(part[last], config)):
                same[:] = value
        else:
            part[last] = value
    copy_properties(folder)
    files = [folder / "config.yml", folder / "paths.yml"]
    files[0].write_text(yaml.safe_dump(config, sort_keys=False))
    files[1].write_text(text)
    return files


def lists_like(wanted: list[Any], content: Any) -> Iterator[list[Any]]:
    """All lists of a configuration's content that equal `wanted`."""
    if content == wanted:
        yield content
    for inner in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        yield from lists_like(wanted, inner)


def use(files: list[Path], folder: Path) -> None:
    """Make `files` the configuration of this process."""
    configuration = get_config()
    configuration.set("espo", "config", " ".join(map(str, files)))
    configuration.set("espo", "workdir", str(folder / "run"))
    configuration.set("espo", "engine", "local")
    configuration.set("espo", "keep_temporary", "false")
    configuration.set("espo", "report", "false")
    configuration.set("espo", "publish", "false")
    forget()
    close_engines()
    Register.clear_instance_cache()
