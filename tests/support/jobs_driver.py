"""A small driver as a process of its own, to be killed: driver.py FOLDER JOBS SECONDS [SCHEDULER [BUNDLE]].

Submits JOBS jobs of SECONDS each and waits. Exit code 0: all succeeded; 3: refused as a second driver; 130: cancelled.
Writes one line of JSON at its end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from job_work import Work

from espo_luigi.jobs.lifecycle.state import Success
from espo_luigi.jobs.lock import SecondDriverError
from espo_luigi.jobs.schedulers import SCHEDULERS


def main() -> int:
    folder, jobs, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    work = Work(folder, *sys.argv[4:5])
    kind = "".join(sys.argv[5:])
    pack = {"pack": "4", "bundle": kind, "pack_at_once": "2" if kind == "pilot" else "0"} if kind else {}
    manager = work.manager(os.environ)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, lambda *_: manager.detach())
    try:
        manager.start()
    except SecondDriverError as error:
        return _end(3, refused=str(error))
    try:
        names = [f"job{i:02d}" for i in range(jobs)]
        # As Luigi does: what is complete is not asked for again.
        missing = [name for name in names if not work.output(name).exists()]
        how = {"seconds": seconds, "options": SCHEDULERS[work.scheduler].OPTIONS(**pack)}
        requests = [work.order(name, is_complete=work.output(name).exists, **how) for name in missing]
        handles = [manager.submit(request) for request in requests]
        # A signal may reach any thread of a process: the main thread has to wake up to see that it came.
        while not all(handle.wait(1.0) for handle in handles):
            pass
        outcomes = [handle.outcome for handle in handles]
    except KeyboardInterrupt:
        return _end(130, cancelled=manager.cancel_all())
    manager.detach()
    failed = [str(outcome) for outcome in outcomes if not isinstance(outcome, Success)]
    complete = sum(work.output(name).exists() for name in names)
    return _end(1, complete=complete, failed=failed) if failed else _end(0, complete=complete)


def _end(code: int, **said: object) -> int:
    sys.stdout.write(json.dumps(said) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
