"""`espo shell` and `espo submit` on a real Slurm: an allocation, a script, and the driver itself as a job."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from throwaway_daemons import wait
from throwaway_slurm import ClusterSpec, ThrowawayCluster

TOYS = Path(__file__).parents[1] / "support"
pytestmark = pytest.mark.slurm
# The seed's partition, and its node with GPUs, which nobody starts here.
CLUSTER = ClusterSpec(nodes=2, cpus=8, conf=("PartitionName=c-iq Nodes=ALL MaxTime=1-00:00:00",))


class Here:
    """A folder with a luigi.cfg, for giving commands in."""

    def __init__(self, folder: Path, cluster: ThrowawayCluster) -> None:
        self.folder = folder
        self.cluster = cluster
        paths = filter(None, [str(TOYS), os.environ.get("PYTHONPATH")])
        self.environ = cluster.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        (folder / "luigi.cfg").write_text(
            "[core]\nworkers = 50\nlog_level = WARNING\nno_lock = true\n[espo]\nengine = slurm\nworkdir = work\n"
            "[slurm]\nprofile = iq\npoll_seconds = 0.5\nresult_seconds = 0.2\nmax_status_per_second = 10\n"
            "[worker]\nwait_interval = 0.2\n"
        )

    def espo(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "espo"), *words]
        return subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=180, check=False
        )

    def job(self, job_id: str) -> str:
        return self.cluster.run("scontrol", "show", "job", job_id)

    def state(self, job_id: str) -> str:
        return self.job(job_id).split("JobState=")[1].split()[0]

    def starts(self) -> Counter[str]:
        path = self.folder / "starts"
        return Counter(path.read_text().split()) if path.exists() else Counter()

    def log(self, job_id: str) -> str:
        path = self.folder / "slurm_logs" / "driver" / f"driver-{job_id}.out"
        return path.read_text() if path.exists() else ""

    def terminate(self, job_id: str) -> None:
        """Send what Slurm sends some time before a job's end, and see the job queued again."""
        before = self.log(job_id).count("is queued again")
        self.cluster.run("scancel", "--signal=TERM", "--batch", job_id)
        assert wait(lambda: self.log(job_id).count("is queued again") > before, 90), self.log(job_id)
        assert wait(lambda: self.state(job_id) == "PENDING", 90), self.job(job_id)

    def begin_again(self, job_id: str) -> None:
        """Start a job that was queued again."""
        drivers = self.log(job_id).count("driver starts")
        self.cluster.start_at_once(job_id, lambda: self.log(job_id).count("driver starts") > drivers)


@pytest.fixture()
def here(tmp_path: Path, cluster: ThrowawayCluster) -> Here:
    return Here(tmp_path, cluster)


def test_a_command_runs_in_an_allocation_with_the_profiles_options_and_those_of_the_command_line(here: Here) -> None:
    show = "scontrol show job $SLURM_JOB_ID; touch ran"
    done = here.espo("shell", "--time", "20", "--cpus-per-task", "3", "--nodelist", "n2", "--", "bash", "-c", show)
    assert done.returncode == 0, done.stderr
    assert (here.folder / "ran").exists()
    for said in ("Partition=c-iq", "TimeLimit=00:20:00", "CPUs/Task=3", "mem=8G", "NodeList=n2"):
        assert said in done.stdout


def test_a_script_is_submitted_with_the_profiles_options_and_the_sizes_that_it_says_itself(here: Here) -> None:
    (here.folder / "job.sh").write_text('#!/bin/bash\n#SBATCH --mem=300M -t 7\necho "got $1"\n')
    done = here.espo("submit", "job.sh", "a b; touch owned")
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.split()[-1]
    assert wait(lambda: here.state(job_id) == "COMPLETED", 90), here.job(job_id)
    for said in ("Partition=c-iq", "TimeLimit=00:07:00", "mem=300M"):
        assert said in here.job(job_id)
    assert (here.folder / f"slurm-{job_id}.out").read_text() == "got a b; touch owned\n"


def test_a_driver_in_a_job_that_is_terminated_twice_goes_on_until_the_run_is_done_and_nothing_is_lost_or_doubled(
    here: Here,
) -> None:
    task = ("SlowOnesAndGated", "--n", "3", "--seconds", "6", "--folder", str(here.folder))
    done = here.espo("submit", "luigi", "--module", "toy_tasks", *task, "--local-scheduler")
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.split()[4].rstrip(";")
    assert wait(lambda: here.starts().total() >= 3, 90), here.log(job_id)
    here.terminate(job_id)
    again = here.espo("submit", "luigi", "--module", "toy_tasks", *task, "--local-scheduler")
    assert (again.returncode, f"job {job_id} (PENDING) is the driver" in again.stderr) == (1, True), again.stderr
    here.begin_again(job_id)
    here.terminate(job_id)
    (here.folder / "go").touch()
    here.begin_again(job_id)
    assert wait(lambda: here.state(job_id) == "COMPLETED", 90), here.log(job_id)
    assert here.starts() == Counter({str(n): 1 for n in range(4)})
    assert len(list(here.folder.glob("slow-*.txt"))) == 3
    assert "Restarts=2" in here.job(job_id)
    assert not (here.folder / "work" / "scheduler" / "driver-job.json").exists()


def test_a_driver_that_somebody_cancels_does_not_come_back(here: Here) -> None:
    task = ("SlowOnes", "--n", "2", "--seconds", "300", "--folder", str(here.folder))
    submit = ("submit", "luigi", "--module", "toy_tasks", *task, "--local-scheduler")
    first = here.espo(*submit).stdout.split()[4].rstrip(";")
    assert wait(lambda: here.starts().total() >= 2, 90), here.log(first)
    here.cluster.run("scancel", first)
    assert wait(lambda: here.state(first) == "CANCELLED", 90)
    assert "is left to Slurm" in here.log(first)
    # The jobs go on, and the next driver takes them over; queued again, it is cancelled with them.
    second = here.espo(*submit).stdout.split()[4].rstrip(";")
    assert wait(lambda: "driver starts" in here.log(second), 90)
    here.terminate(second)
    done = here.espo("cancel")
    assert done.returncode == 0, done.stderr
    assert f"the driver's job {second} does not start again" in done.stdout
    assert "2 job(s) cancelled" in done.stdout
    assert wait(lambda: not here.cluster.run("squeue", "--noheader"), 90)
    assert here.starts() == Counter({"0": 1, "1": 1})
