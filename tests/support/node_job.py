"""What the tests run on a node: a job of a few lines that keeps to the same files as `espo_luigi.jobs.node.run`.

It works for so many seconds, or until there is a file called as its output, with ``.told``. Usage: node_job.py
JOB_FILE, where the file holds {"do": …, "seconds": …, "result": …, "heartbeat": …, "starts": …,
"output": …}.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    job = json.loads(Path(sys.argv[1]).read_text())
    job_id, result = _job_id(), Path(job["result"])
    if _done_before(result, job_id):
        return 0
    with Path(job["starts"]).open("a") as file:
        file.write(f"{job_id} {os.environ['ESPO_JOB_NAME']} {os.environ.get('SLURM_JOB_PARTITION', '')}\n")
    what = _what(job)
    if what == "nothing":
        return 0
    if what == "memory":
        _hold = bytearray(200 * 2**20)
    if what == "memory of many":
        # Each below a limit that together they exceed.
        script = "import time; x = bytearray(60 * 2**20); time.sleep(60)"
        _held = [subprocess.Popen([sys.executable, "-I", "-S", "-c", script]) for _ in range(5)]
    _give_way_if_told(what, result, job_id)
    if what == "die" or what == f"die on {os.environ.get('SLURMD_NODENAME')}":
        os.abort()
    _beat(job, stop_beating=what == "hang")
    if what == "die late":
        os.abort()
    if what != "fail":
        Path(job["output"]).touch()
    _write(result, {"job_id": job_id, "attempt": int(os.environ["ESPO_ATTEMPT"]), **_outcome(what)})
    return 1 if what == "fail" else 0


def _give_way_if_told(what: str, result: Path, job_id: str) -> None:
    def give_way(signum: int, _frame: object) -> None:
        _write(result, {"job_id": job_id, "attempt": int(os.environ["ESPO_ATTEMPT"]), "outcome": "preempted"})
        os._exit(128 + signum)

    for number in (signal.SIGTERM, signal.SIGUSR2) if what == "give way" else ():
        signal.signal(number, give_way)


def _job_id() -> str:
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ.get("SLURM_JOB_ID") or os.environ["JOB_ID"]


def _what(job: dict) -> str:
    """The action, or the one for this attempt where there is a list of them."""
    actions = job["do"] if isinstance(job["do"], list) else [job["do"]]
    return actions[min(int(os.environ["ESPO_ATTEMPT"]), len(actions)) - 1]


def _done_before(result: Path, job_id: str) -> bool:
    if not result.exists():
        return False
    return json.loads(result.read_text())["outcome"] == "success" and json.loads(result.read_text())["job_id"] == job_id


def _beat(job: dict, stop_beating: bool) -> None:
    until = time.monotonic() + (300 if stop_beating else job["seconds"])
    told = Path(f"{job['output']}.told")
    beats = 0
    while time.monotonic() < until and not told.exists():
        if not stop_beating or beats < 2:
            _write(Path(job["heartbeat"]), {"time": time.time(), "progress": beats})
        if stop_beating and beats < 2:
            # Not in other jobs: a stack that is written while the main thread works can end the process.
            faulthandler.dump_traceback_later(0.7, file=2)
        beats += 1
        time.sleep(min(0.5, max(0.0, until - time.monotonic())))


def _outcome(what: str) -> dict[str, str]:
    if what == "fail":
        return {
            "outcome": "error",
            "exception": "ValueError: no such model",
            "traceback": "Traceback …\nValueError: no",
        }
    return {"outcome": "success"}


def _write(path: Path, value: dict) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(value))
    os.replace(aside, path)


if __name__ == "__main__":
    if sys.argv[1] == "--pilot":
        # A pilot imports the package, whose folders this Python does not know.
        os.execv(sys.executable, [sys.executable, str(Path(__file__).with_name("pilot_job.py")), *sys.argv[2:]])
    sys.exit(main())
