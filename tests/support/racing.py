"""Several processes that begin the same at once."""

import contextlib
import subprocess
import sys


def winners_of(act: str, *arguments: str) -> list[int]:
    """Which of five processes get through a statement that all of them begin at once; these stay until all tried."""
    program = (
        "import sys; from pathlib import Path; from espo_luigi.files import create_whole\n"
        "from espo_luigi.jobs.lock import DriverLock\n"
        f"print('ready', flush=True); sys.stdin.readline(); {act}; print('done', flush=True); sys.stdin.readline()"
    )
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", program, *arguments, str(number)],
                    stdin=pipe,
                    stdout=pipe,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
            for number in range(5)
        ]
        pipes = [(one.stdin, one.stdout) for one in processes if one.stdin and one.stdout]
        assert [out.readline() for _, out in pipes] == ["ready\n"] * 5
        for told, _ in pipes:
            told.write("\n")
            told.flush()
        return [number for number, (_, out) in enumerate(pipes) if out.readline() == "done\n"]
