"""The example in docs/python.md, as it stands there, run by luigi's own command."""

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs" / "python.md"


def test_the_documented_task_runs_alone_with_the_local_scheduler(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(from pathlib.*?)```", DOCS.read_text(), re.DOTALL)
    assert "climate" not in code and "espo_luigi.tasks" not in code
    (tmp_path / "squares.py").write_text(code)
    (tmp_path / "luigi.cfg").write_text("[retcode]\ntask_failed = 30\n[core]\nlog_level = WARNING\n")
    luigi = Path(sys.executable).parent / "luigi"
    command = [str(luigi), "--module", "squares", "Square", "--n", "100", "--local-scheduler"]
    environ = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "square-100.txt").read_text() == str(sum(i * i for i in range(100)))
    assert "Square n=100 done" in done.stderr
