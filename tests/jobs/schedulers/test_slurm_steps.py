"""What scontrol says of an allocation (copied from Slurm 22.05), and the command of a step."""

from dataclasses import replace

import pytest

from espo_luigi.jobs.resources import Resources
from espo_luigi.jobs.schedulers import gridengine as sge
from espo_luigi.jobs.schedulers import slurm
from espo_luigi.jobs.schedulers.script import ScriptValues
from espo_luigi.jobs.schedulers.slurm import SlurmOptions, step_command, step_environment
from espo_luigi.jobs.schedulers.slurm_parse import parse_allocation

TWO_SIZES = """JobId=8 JobName=interactive
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   StartTime=2026-11-22T08:22:59 EndTime=2026-11-22T08:32:59 Deadline=N/A
   NodeList=n[1-3]
   NumNodes=3 NumCPUs=9 NumTasks=3 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   JOB_GRES=(null)
     Nodes=n[1-2] CPU_IDs=0-1 Mem=500 GRES=
     Nodes=n3 CPU_IDs=0-3,8 Mem=1000 GRES=
   MinCPUsNode=1 MinMemoryNode=500M MinTmpDiskNode=0
"""


def test_each_node_has_its_cpus_and_memory() -> None:
    found = parse_allocation(TWO_SIZES, lambda nodes: {"n[1-2]": ["n1", "n2"], "n3": ["n3"]}[nodes])
    assert found.runs
    assert found.ends == "2026-11-22T08:32:59"
    assert found.nodes == {"n1": (2, 500), "n2": (2, 500), "n3": (5, 1000)}


@pytest.mark.parametrize("state", ["COMPLETING", "TIMEOUT", "CANCELLED", "PENDING"])
def test_an_allocation_in_any_other_state_does_not_run(state: str) -> None:
    assert not parse_allocation(TWO_SIZES.replace("RUNNING", state), lambda nodes: []).runs


def test_an_answer_without_a_state_is_none() -> None:
    with pytest.raises(ValueError, match="said no JobState"):
        parse_allocation("slurm_load_jobs error", lambda nodes: [])


def test_a_step_is_on_one_node_with_what_its_task_asks_for() -> None:
    command = step_command(
        "8", "n3", "My Rule", Resources(2, 4, "3GB"), SlurmOptions(), ("python", "order with space.json")
    )
    assert command[0] == "srun" and command[-2:] == ("python", "order with space.json")
    assert {"--jobid=8", "--nodelist=n3", "--nodes=1", "--ntasks=1", "--exclusive"} < set(command)
    assert {"--cpus-per-task=4", "--mem=3072M", "--job-name=My_Rule"} < set(command)


def test_a_step_asks_for_no_memory_where_the_site_forbids_that() -> None:
    command = step_command("8", "n3", "A", Resources(1, 1, "3GB"), SlurmOptions(memory_resource="none"), ())
    assert not [word for word in command if word.startswith("--mem")]


def test_memory_is_asked_for_in_whole_mib_rounded_up() -> None:
    assert "--mem=2M" in step_command("8", "n3", "A", Resources(1, 1, "1025K"), SlurmOptions(), ())
    asked = ScriptValues("a", 1, ("true",), 1, 2**20 + 1, 60, "log", "claim", "/work")
    assert "--mem=2M" in slurm.directives(replace(asked, options=slurm.SlurmOptions()))
    assert "h_rt=3600,h_vmem=2M" in sge.arguments(replace(asked, options=sge.SgeOptions()))


def test_nothing_of_the_allocations_own_sizes_reaches_a_step() -> None:
    kept = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_TMPDIR": "/scratch/8", "TZ": "Europe/Paris", "HOME": "/home/me"}
    dropped = {"SLURM_MEM_PER_CPU": "1", "SLURM_CPUS_PER_TASK": "9", "SRUN_EXPORT_ENV": "NONE", "SLURM_JOB_ID": "8"}
    assert step_environment({**kept, **dropped}).items() >= kept.items()
    assert not step_environment({**kept, **dropped}).keys() & dropped.keys()
