"""Why a job pends, in plain words: Slurm's reasons, with what can be done."""

from __future__ import annotations

import re

_WORDS = {
    "Priority": "other people's jobs go first",
    "Resources": "it is next, and waits until enough CPUs and memory of a node are free",
    "BeginTime": "it waits for its time to begin: it was requeued a moment ago, or was told to begin later",
    "Dependency": "it waits for another job",
    "JobHeldUser": "it is held by you: `scontrol release` lets it go on",
    "JobHeldAdmin": "it is held by an administrator: ask there",
    "Licenses": "it waits for a licence",
    "NodeDown": "a node that it needs is down",
    "PartitionConfig": "it asks for more than a node of its partition has: lower the rule's request, or choose another",
    "PartitionDown": "its partition is down: ask the site, or choose another",
    "PartitionInactive": "its partition is closed at the moment",
    "PartitionNodeLimit": "it asks for more than its partition has: lower the rule's request, or choose another",
    "PartitionTimeLimit": "it asks for more time than its partition allows: lower the rule's `time`, or choose another",
    "ReqNodeNotAvail": "a node that it needs is down, drained or reserved (for maintenance: a shorter `time` may fit)",
    "Reservation": "it waits for its reservation",
    "QOSMaxJobsPerUserLimit": "you have as many jobs running as your QOS allows: it goes on when one of them ends",
    "AssocMaxJobsLimit": "your account has as many jobs running as it may: it goes on when one of them ends",
    "InvalidAccount": "its account is not valid: correct `account`",
    "InvalidQOS": "its QOS is not valid: correct `qos`",
    "None": "Slurm has not looked at it yet",
}
# Words of the reasons for which Slurm itself takes a node out of use, until an administrator resumes it.
_DRAINED_BY_SLURM = (
    ("Duplicate jobid", "slurmctld lost its state, and gave out numbers of jobs that were still there"),
    ("Kill task failed", "a job's processes could not be ended"),
    ("Prolog error", "its prolog failed"),
    ("Epilog error", "its epilog failed"),
    ("batch job complete failure", "it could not report a job's end"),
    ("unexpectedly rebooted", "it started anew by itself"),
)
_LIMIT = re.compile(r"^(QOS|Assoc)(Grp|Max)(\w*?)(Limit)?$")


def parse_drained(text: str) -> list[str]:
    """Return a sentence a reason about the nodes that Slurm itself drained, from ``sinfo`` lines ``node|reason``."""
    nodes: dict[tuple[str, str], dict[str, None]] = {}
    for line in text.splitlines():
        node, _, reason = line.strip().partition("|")
        for words, meaning in _DRAINED_BY_SLURM:
            if words.lower() in reason.lower():
                nodes.setdefault((reason, meaning), {})[node] = None
    return [
        f"Slurm drained {', '.join(names)} ({reason}: {meaning}), and starts nothing there: an administrator, once no "
        f"process of a job is left there, gives `scontrol update nodename={','.join(names)} state=resume`"
        for (reason, meaning), names in nodes.items()
    ]


def in_words(reason: str) -> str:
    """Return what a reason means; of an unknown one, itself."""
    name = reason.split(",")[0].strip("() ")
    limit = _LIMIT.match(name)
    if name not in _WORDS and limit:
        whose = "your QOS" if limit[1] == "QOS" else "your account"
        return (
            f"{whose} may not have more at once ({name}): it goes on when other jobs end, or never if it asks too much"
        )
    return _WORDS.get(name, f"Slurm says {name}" if name else "Slurm has not said why")
