"""What jobs share, by the engine: CPUs and memory of this machine or of an allocation, or places in a scheduler."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from espo_luigi.driver.run.engines import local_settings
from espo_luigi.driver.settings.espo import settings, workers
from espo_luigi.driver.settings.sections import JOB_COMMAND, SECTIONS
from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.local.engine import Launcher
from espo_luigi.jobs.local.engine import Room as NodeRoom
from espo_luigi.jobs.local.srun import AllocationSettings
from espo_luigi.jobs.resources import GIB, Resources
from espo_luigi.jobs.schedulers.slurm import submit as slurm

# How much there is, or how much a job takes, of each thing that jobs share.
Amounts = Mapping[str, float]


@dataclass(frozen=True)
class Room:
    """What there is, the most that one job gets (None: as much as it asks for), and where that is, in words.

    Nodes are added up. What is not named is not limited, or, unless `is_known`, its limit is not known.
    """

    amounts: Amounts
    largest: NodeRoom | None
    words: str
    is_known: bool = True

    def taken(self, resources: Resources, at_once: int) -> Amounts:
        """Return what a task takes of it with these resources; `at_once` of its kind run in one job."""
        takes = {
            "workers": 1.0,
            "jobs": 1 / at_once,
            "cpus": resources.cpus_per_task,
            "memory": resources.memory_bytes,
        }
        return {name: takes[name] for name in self.amounts}


def room() -> Room:
    """Return the room of the engine that is chosen."""
    engine, at_once = settings().engine, workers()
    if engine in SECTIONS:
        most = SECTIONS[engine]().max_jobs
        words = f"with [{engine}] max_jobs = {most}, [core] workers = {at_once}"
        return Room({"workers": at_once, "jobs": most}, None, words)
    if engine == "allocation":
        return _of_allocation(at_once)
    return _of_nodes(local_settings().launcher(), at_once, "here")


def _of_allocation(at_once: int) -> Room:
    try:
        launcher = AllocationSettings(JOB_COMMAND).launcher()
    except (SubmissionError, ValueError) as error:
        outside = "the allocation's size is known inside of it only (`espo shell`)"
        return Room({"workers": at_once}, None, str(error) if slurm.job_id(os.environ) else outside, is_known=False)
    return _of_nodes(launcher, at_once, f"of {launcher.place}")


def _of_nodes(launcher: Launcher, at_once: int, where: str) -> Room:
    nodes: Sequence[NodeRoom] = list(launcher.nodes.values())
    cpus, memory = sum(node.cpus for node in nodes), sum(node.memory_bytes for node in nodes)
    words = f"on {cpus} CPU(s) and {math.floor(memory / GIB * 10) / 10} GiB {where}"
    return Room({"workers": at_once, "cpus": cpus, "memory": memory}, launcher.largest, words)
