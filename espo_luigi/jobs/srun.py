"""Runs jobs as steps of the driver's own Slurm allocation: `Steps` is a launcher of the local engine."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections.abc import Sequence

from espo_luigi.errors import Failure, JobError, SubmissionError
from espo_luigi.files import open_own
from espo_luigi.jobs.forkserver import Child
from espo_luigi.jobs.local import Launcher, Room
from espo_luigi.jobs.order import JobOrder
from espo_luigi.jobs.resources import MIB, JobOptions, headroom, render_memory, said_memory
from espo_luigi.jobs.retry import start
from espo_luigi.jobs.schedulers import slurm
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.slurm_parse import NO_SUCH_JOB, Allocation, parse_allocation
from espo_luigi.machine import machine_memory

logger = logging.getLogger(__name__)

# How long a step has to end by itself: its job ends at most ten seconds after its driver (`node.run`).
_LONGEST_END_SECONDS = 15.0


class Step(Child):
    """A running `srun`; a thread waits for its end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__()
        self.process = process
        start(threading.Thread(target=self._wait, daemon=True))

    def stop(self) -> None:
        """Close the job's input, so that it ends by itself; on a signal, srun would kill it at once."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def _wait(self) -> None:
        self.process.wait()
        self.ended.set()


class Steps(Launcher):
    """Starts jobs as steps. A step reads from a pipe that only its driver holds open, and ends with it.

    `work` is the command that executes an order file. Of `options`, only `memory_resource` concerns steps.
    Raises SubmissionError outside of an allocation.
    """

    parent = "stdin"

    def __init__(self, work: Sequence[str], options: JobOptions | None = None) -> None:
        job_id = slurm.job_id(os.environ)
        if job_id is None:
            raise SubmissionError(
                "engine = allocation runs the tasks inside an allocation of Slurm, and this is none (SLURM_JOB_ID is "
                "not set): give `espo shell`, and this command in the shell that it opens; or choose engine = slurm"
            )
        self._job_id, self._work, self._options = job_id, work, options or JobOptions()
        self._commands = Commands(slurm)
        self._steps: list[Step] = []
        self.place = f"allocation {job_id}"
        found = allocation_of(self._job_id, self._commands)
        if not found.runs or not found.nodes:
            raise SubmissionError(f"{self.place} is {found.state}, expected RUNNING: {_ANOTHER}")
        self.nodes = {name: _room(name, *has) for name, has in found.nodes.items()}
        self.largest = self.alone
        rooms = ", ".join(
            f"{name}: {room.cpus} CPU(s), {render_memory(room.memory_bytes)}" for name, room in self.nodes.items()
        )
        logger.info("Steps of %s (%s), which ends at %s", self.place, rooms, found.ends)

    def start(self, order: JobOrder, node: str) -> Child:
        """Start the step; it waits while other steps of the allocation occupy the node."""
        self._steps = [step for step in self._steps if not step.ended.is_set()]
        work = (*self._work, str(order.files.order))
        command = slurm.step_command(self._job_id, node, order.family, order.resources, self._options, work)
        with open(open_own(order.files.log, os.O_TRUNC), "wb") as log:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=slurm.step_environment(os.environ),
                    start_new_session=True,  # Ctrl-C at the driver is the driver's to handle
                )
            except OSError as error:
                raise JobError(Failure(order.label, f"srun could not be started: {error}")) from error
        self._steps.append(Step(process))
        return self._steps[-1]

    def why_killed(self, order: JobOrder, log_tail: str) -> str:
        """Return the likely reason for a step's end without a result, from Slurm's lines in its log."""
        if slurm.says_out_of_memory(log_tail):
            had = said_memory(order.resources.memory_bytes)
            return f"out of memory, of which it had {had}: raise [{order.family}] memory"
        return "killed, or its step could not be started"

    def is_over(self) -> str:
        try:
            state = allocation_of(self._job_id, self._commands).state
        except SubmissionError:
            return ""
        return "" if state == "RUNNING" else f"{self.place} is over ({state}). What is complete stays: {_ANOTHER}"

    def close(self) -> None:
        for step in self._steps:
            step.stop()
        until = time.monotonic() + _LONGEST_END_SECONDS
        for step in self._steps:
            if not step.ended.wait(max(0.0, until - time.monotonic())):
                step.process.terminate()


def allocation_of(job_id: str, commands: Commands) -> Allocation:
    """Ask Slurm for a job's state and nodes; raise SubmissionError if Slurm does not answer."""
    answer = commands.run(("scontrol", "--details", "show", "job", job_id))
    if NO_SUCH_JOB in answer.stderr:  # the controller has forgotten the job, which has then ended
        return Allocation("unknown to Slurm")
    if not answer.ok:
        raise SubmissionError(f"Slurm did not say what job {job_id} is ({answer.words}); try again later")
    hostnames = "scontrol", "show", "hostnames"
    return parse_allocation(answer.stdout, lambda nodes: commands.run((*hostnames, nodes)).stdout.split())


_ANOTHER = "give the same command in another allocation (`espo shell`)"


def _room(name: str, cpus: int, memory_mib: int) -> Room:
    memory = memory_mib * MIB or machine_memory()
    # On its own node, the driver needs some of the memory.
    return Room(cpus, memory - headroom(memory) if os.environ.get("SLURMD_NODENAME") == name else memory)
