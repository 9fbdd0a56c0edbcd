"""A small valid configuration, which each test changes where it wants to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from espo_luigi.config import RunConfig, load

SMALL = """
paths: {tmpdir: /tmp/espo/scratch, final: /tmp/espo/final}
custom:
  regions:
    south: {name: south, method: bbox, lon_bnds: [-80, -60], lat_bnds: [45, 47.05]}
    north: {name: north, method: bbox, lon_bnds: [-80, -60], lat_bnds: [47.05, 50]}
  amno_region: {name: NAM, method: bbox, tile_buffer: 1.5, lon_bnds: [-80, -60], lat_bnds: [45, 50]}
  ref_period: &ref_period ['1991', '2020']
  sim_period: &sim_period ['1950', '2100']
extraction:
  reference:
    search_data_catalogs: &search
      data_catalogs: [/data/reference.json]
      variables_and_freqs: {tasmax: D, tasmin: D, pr: D, dtr: D}
      allow_conversion: true
      periods: *ref_period
      other_search_criteria: {source: ERA5-Land}
  simulation:
    search_data_catalogs:
      <<: *search
      data_catalogs: [/data/simulation.json]
      periods: *sim_period
      restrict_members: {ordered: 1}
      other_search_criteria: {experiment: [ssp585]}
biasadjust:
  variables:
    tasmax:
      training_args:
        group: {group: time.dayofyear, window: 31}
        xclim_train_args: {kind: +, nquantiles: 50}
      adjusting_args:
        xclim_adjust_args: {interp: nearest}
off-diag:
  domains:
    Ute: {name: Ute, method: bbox, lat_bnds: [45.5, 46.5], lon_bnds: [-70, -65]}
  steps:
    ref: &step
      domain: {Ute: south}
      properties_and_measures: &details
        properties: {indicators: {mean_tasmax: {base: xsdba.properties.mean, input: {da: tasmax}}}}
      unstack: true
    sim: *step
    scen:
      domain: {Ute: NAM}
      properties_and_measures: *details
"""

Write = Callable[..., Path]
Load = Callable[..., RunConfig]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a configuration file: text, or content."""

    def write_file(content: str | dict[str, Any], name: str = "config.yml") -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
        return path

    return write_file


@pytest.fixture
def content() -> dict[str, Any]:
    """The content of the small configuration, without aliases, free to be changed."""
    return parsed(SMALL)


def parsed(text: str) -> dict[str, Any]:
    """Parse YAML; what an alias repeats becomes a copy of its own."""
    from copy import deepcopy

    def unshared(value: Any) -> Any:
        return {key: unshared(inner) for key, inner in value.items()} if isinstance(value, dict) else deepcopy(value)

    return unshared(yaml.safe_load(text))


@pytest.fixture
def load_with(write: Write) -> Load:
    """Return a function that loads the small configuration, then the changes that it is given as YAML text."""

    def load_changed(*changes: str) -> RunConfig:
        files = [write(SMALL)]
        files += [write(change, f"change{number}.yml") for number, change in enumerate(changes)]
        return load(files)

    return load_changed


@pytest.fixture
def small() -> str:
    """The text of the small configuration."""
    return SMALL
