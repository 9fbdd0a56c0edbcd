"""A run as a report needs it: names, and the places of all products. The caller makes this value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from espo_luigi.jobs.accounts import Power


@dataclass(frozen=True)
class Made:
    """What one task is to make, and whether that is there."""

    rule: str
    label: str
    paths: tuple[Path, ...]
    complete: bool


@dataclass(frozen=True)
class Diagnosed:
    """The stores about a simulation in a domain."""

    sim_id: str
    domain: str
    reference: Path
    summary: Path | None
    improvement: Path
    sim_prop: Path
    sim_meas: Path
    scen_prop: Path
    scen_meas: Path


@dataclass(frozen=True)
class RunView:
    """A run: its inputs, its products, and their places.

    `flags` and `inputs` are tables, by dataset; `pools` has the simulations that are adjusted together, by name;
    `inversions` counts days with tasmax below tasmin, and `products_of` has the final archives, by simulation;
    `compared` has what was nearer to the reference after adjusting, by pool and domain.
    """

    config_files: tuple[Path, ...]
    config_hash: str
    reference: str
    simulations: tuple[str, ...]
    domains: tuple[str, ...]
    period: tuple[int, ...]
    final: Path
    workdir: Path
    engine: str
    products: tuple[Made, ...] = ()
    diagnosed: tuple[Diagnosed, ...] = ()
    flags: Mapping[str, Path] = field(default_factory=dict)
    inputs: Mapping[str, Path] = field(default_factory=dict)
    pools: Mapping[str, Sequence[str]] = field(default_factory=dict)
    inversions: Mapping[str, Path] = field(default_factory=dict)
    products_of: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    power: Power = field(default_factory=Power)
    compared: Mapping[tuple[str, str], Path] = field(default_factory=dict)
