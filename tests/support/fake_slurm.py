"""Stand-ins for Slurm's commands, for what cannot be made to happen on a real cluster.

`install` writes sbatch, squeue, sacct, scontrol and scancel into ``bin`` of a folder. Their state is in files of that
folder: ``jobs`` holds one line ``id|state|node|reason|name`` a job; ``{command}.do`` says how a command misbehaves;
``{command}.says`` is what it answers instead of what it would, and ``squeue.by-id`` what squeue answers to ``--jobs``;
every call is added to ``calls``.
"""

from __future__ import annotations

import sys
from pathlib import Path

_PROGRAM = """\
#!{python} -IS
import os, sys, time
here = {here!r}
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
def read(file):
    try:
        return open(os.path.join(here, file)).read()
    except FileNotFoundError:
        return ""
def write(file, text, mode="a"):
    with open(os.path.join(here, file), mode) as out:
        out.write(text)
write("zones", name + " " + os.environ.get("TZ", "none") + chr(10))
write("calls", name + " " + " ".join(arguments) + chr(10))
do = read(name + ".do").strip()
if do == "hang":
    time.sleep(60)
if do.startswith("fail "):
    sys.exit(do[5:])
if name == "sbatch":
    if do == "refuse-then-take":
        os.remove(os.path.join(here, "sbatch.do"))
        sys.exit("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
    job_id = str(len(read("jobs").splitlines()) + 1)
    job_name = next(a for a in arguments if a.startswith("--job-name=")).partition("=")[2]
    last = next((a for a in arguments if a.startswith("--array=")), "").rpartition("-")[2].partition("%")[0]
    for suffix in ["_" + str(i) for i in range(int(last) + 1)] if last else [""]:
        write("jobs", job_id + suffix + "|PENDING||Priority|" + job_name + chr(10))
    if do.startswith("say "):
        sys.stderr.write('sbatch: error: "SBATCH_EXCLUSIVE=true" -- invalid value, ignoring...' + chr(10))
        print(do[4:].replace("ID", job_id))
        sys.exit()
    if do == "take-then-hang":
        os.remove(os.path.join(here, "sbatch.do"))
        time.sleep(60)
    if do == "take-then-fail":
        os.remove(os.path.join(here, "sbatch.do"))
        sys.exit("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
    print(job_id)
elif name == "squeue":
    asked = "squeue.by-id" if any(a.startswith("--jobs=") for a in arguments) else "squeue.says"
    files = [file for file in (asked, "squeue.says", "jobs") if os.path.exists(os.path.join(here, file))]
    print(read(files[0]) if files else "", end="")
elif name == "sacct":
    print(read("sacct.says"), end="")
elif name == "scancel":
    ids = [i for a in arguments if not a.startswith("-") for i in a.split(",")]
    lines = [line.split("|") for line in read("jobs").splitlines()]
    for line in lines:
        if line[0] in ids and "--batch" not in arguments:
            line[1] = "CANCELLED"
    write("jobs", "".join("|".join(line) + chr(10) for line in lines), "w")
    if do == "take-then-fail":
        write("squeue.do", "fail slurm_load_jobs error: Unable to contact slurm controller")
        sys.exit("scancel: error: Kill job error: Socket timed out on send/recv operation")
"""


def install(folder: Path) -> None:
    """Write the commands into `folder`."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for name in ("sbatch", "squeue", "sacct", "scontrol", "scancel"):
        path = programs / name
        path.write_text(_PROGRAM.format(python=sys.executable, here=str(folder)))
        path.chmod(0o755)
