"""What a command takes, seen from outside: seconds, CPU seconds and the peak of its memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Runs the command from a small process: a child's peak of memory begins with that of the process that it was forked
# from.
_SPAWN = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
code = subprocess.call(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
seconds = time.perf_counter() - began
print("\\n" + json.dumps([code, seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
"""


@dataclass(frozen=True)
class Taken:
    """What a command took; of a script of this folder, imports included."""

    seconds: float
    cpu_seconds: float
    peak_mib: float

    def rounded(self) -> dict[str, float]:
        return {name: round(value, 2) for name, value in asdict(self).items()}


def cpu_seconds() -> float:
    """CPU seconds so far, of this process and of those that it ran."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def run(*words: str, **options: Any) -> tuple[Taken, str]:
    """Run a command in a process of its own; return what it took and what it printed, or exit if it fails."""
    spawn = [sys.executable, "-S", "-c", _SPAWN, *words]
    printed = subprocess.run(spawn, stdout=subprocess.PIPE, check=True, text=True, **options).stdout
    told, _, figures = printed.rstrip("\n").rpartition("\n")
    code, *taken = json.loads(figures)
    if code:
        raise SystemExit(f"{' '.join(words)} ended with {code}; its message is above\n{told}")
    return Taken(*taken), told.rstrip("\n")


def script(file: str, *words: object) -> tuple[Taken, str]:
    """Run a script of this folder with these words."""
    return run(sys.executable, str(Path(file).absolute()), *map(str, words))
