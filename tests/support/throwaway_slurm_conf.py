"""Configuration of a throw-away Slurm cluster: what is asked for, and the text of its files."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ClusterSpec:
    """What to start. Memory in MiB; `conf` and `dbd_conf` are further lines of slurm.conf and slurmdbd.conf.

    `node_prefix` are words before the command of each node's daemon, such as those that give it other mounts.
    """

    nodes: int = 4
    cpus: int = 64
    memory_mib: int = 200_000
    accounting: bool = False
    min_job_age: int = 300
    conf: tuple[str, ...] = ()
    dbd_conf: tuple[str, ...] = ()
    node_prefix: tuple[str, ...] = ()

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the virtual nodes."""
        return tuple(f"n{i}" for i in range(1, self.nodes + 1))


def render_slurm_conf(spec: ClusterSpec, folder: Path, ports: Mapping[str, int]) -> str:
    """Text of slurm.conf: virtual nodes, memory enforced by polling, partitions of which one preempts the others."""
    host, user = socket.gethostname().split(".")[0], getpass.getuser()
    lines = [
        "ClusterName=throwaway",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={ports['slurmctld']}",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/run/munge.sock",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool/%n",
        f"SlurmctldPidFile={folder}/run/slurmctld.pid",
        f"SlurmdPidFile={folder}/run/slurmd-%n.pid",
        f"SlurmctldLogFile={folder}/log/slurmctld.log",
        f"SlurmdLogFile={folder}/log/slurmd-%n.log",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "MpiDefault=none",
        "SwitchType=switch/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU_Memory",
        "SlurmdParameters=config_overrides",
        "SchedulerParameters=bf_interval=2,sched_min_interval=200000,batch_sched_delay=1",
        # Without cgroups, memory is only enforced by polling the processes' sizes.
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=task=2",
        "JobAcctGatherParams=OverMemoryKill",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "KillWait=5",
        f"MinJobAge={spec.min_job_age}",
        "ReturnToService=2",
        "PropagateResourceLimits=NONE",
        f"AccountingStorageType=accounting_storage/{'slurmdbd' if spec.accounting else 'none'}",
        *(_accounting_lines(folder, ports) if spec.accounting else []),
        f"NodeName=DEFAULT CPUs={spec.cpus} RealMemory={spec.memory_mib}",
        *(f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[name]}" for name in spec.node_names),
        "PartitionName=main Nodes=ALL Default=YES MaxTime=7-00:00:00 PriorityTier=1",
        "PartitionName=main-grace Nodes=ALL MaxTime=7-00:00:00 PriorityTier=1 PreemptMode=CANCEL GraceTime=10",
        "PartitionName=urgent Nodes=ALL MaxTime=7-00:00:00 PriorityTier=2",
        *spec.conf,
    ]
    return "\n".join(lines) + "\n"


def _accounting_lines(folder: Path, ports: Mapping[str, int]) -> list[str]:
    # The persistent connection to slurmdbd ignores AuthInfo: its munge socket is given as a "password".
    return [
        "AccountingStorageHost=localhost",
        f"AccountingStoragePort={ports['slurmdbd']}",
        f"AccountingStoragePass={folder}/run/munge.sock",
    ]


def render_slurmdbd_conf(spec: ClusterSpec, folder: Path, ports: Mapping[str, int]) -> str:
    """Text of slurmdbd.conf. DbdHost is ``localhost``: slurmdbd refuses 127.0.0.1."""
    lines = [
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/run/munge.sock",
        "DbdHost=localhost",
        f"DbdPort={ports['slurmdbd']}",
        f"SlurmUser={getpass.getuser()}",
        f"LogFile={folder}/log/slurmdbd.log",
        f"PidFile={folder}/run/slurmdbd.pid",
        "StorageType=accounting_storage/mysql",
        "StorageHost=127.0.0.1",
        f"StoragePort={ports['mariadbd']}",
        "StorageUser=slurm",
        "StoragePass=throwaway",
        "StorageLoc=slurm_acct",
        *spec.dbd_conf,
    ]
    return "\n".join(lines) + "\n"
