"""What the page "Where does my change go" adds works: it is added to a copy of the package, and used."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from others_packages import code_blocks

CHECKOUT = Path(__file__).parents[1]
USES = """
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from report_examples import write_run

import espo_luigi
from espo_luigi.config.health_checks import Checks
from espo_luigi.errors import HealthCheckError
from espo_luigi.methods.base import method_named
from espo_luigi.report.make import make_sections
from espo_luigi.science import quality
from espo_luigi.science.diagnose.health import health_checks
from espo_luigi.science.outcomes.indicators import compute_indicators, load_indicators
from espo_luigi.science.possible import limits_in

here = Path(sys.argv[1])
assert Path(espo_luigi.__file__).is_relative_to(here)
days = xr.date_range("2001-01-01", "2003-12-31", calendar="noleap", use_cftime=True)
series = xr.DataArray(np.full((len(days), 2), 260.0, "f4"), {"time": days}, ("time", "cell"), "tasmax", {"units": "K"})
series[5, 1] = 280

(ice_days,) = [one for one in load_indicators(str(here / "config/demo/indicators.yml")) if one[0] == "ice_days"]
made = compute_indicators(series.to_dataset(), [ice_days])
assert made["YS-JAN"]["ice_days"].values.tolist() == [[365, 364], [365, 365], [365, 365]]

assert limits_in("zg500", "km") == (4.0, 6.5)

method = method_named("shift")
trained = method.train({"reference": series + 1, "historical": series}, None)
assert float(method.adjust({"simulation": series}, trained, None)["scenario"][0, 0]) == 261

nowhere = {"tasmax": np.zeros(2, bool)}
regridded = quality.of_regridded(series.to_dataset(), series.to_dataset(), nowhere, [])
how = {"period": ("2001", "2001"), "kind": "+", "signal": 0.5}
flags = quality.of_adjusted(series, regridded, **how)["tasmax_cell_flags"]
assert (flags & quality.meanings(flags)["constant"] > 0).values.tolist() == [True, False]

asked = Checks(years=2, raise_on=["years"]).arguments()
with pytest.raises(HealthCheckError, match="There are 3 years, expected 2"):
    health_checks(series.to_dataset(), **asked)

(here / "run").mkdir()
assert "Licence" in [section.title for section in make_sections(write_run(here / "run"))[0]]
"""


def added(text: str, change: str) -> str:
    """Return a file's text with the lines of a diff, which has to fit in a single place."""
    lines = change.splitlines()
    before, after = ("".join(f"{line[1:]}\n" for line in lines if line[0] in kept) for kept in (" -", " +"))
    assert text.count(before) == 1, f"{text.count(before)} places for\n{before}"
    return text.replace(before, after)


def test_each_change_of_the_page_can_be_made_and_used(tmp_path: Path) -> None:
    for folder in ("espo_luigi", "config"):
        shutil.copytree(CHECKOUT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    blocks = code_blocks("../developers/where.md")
    for change in blocks["diff"]:
        name, _, rest = change.removeprefix("+++ ").partition("\n")
        path = tmp_path / name
        path.write_text(added(path.read_text(), rest))
    for module in blocks["python"]:
        (tmp_path / re.findall(r"^# (\S+)$", module, re.M)[0]).write_text(module)
    support = Path(__file__).parent / "support"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, support)))}
    done = subprocess.run(
        [sys.executable, "-c", USES, str(tmp_path)], env=environ, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
