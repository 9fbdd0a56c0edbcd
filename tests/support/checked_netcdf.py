"""What programs of others say of exported files: compliance-checker, and CDO beside the archive."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr


def problems_of(files: Sequence[Path]) -> str:
    """Return what compliance-checker says against files by CF 1.11, most strictly; nothing if it accepts all."""
    checker = Path(sys.executable).parent / "compliance-checker"
    words = [str(checker), "--test", "cf:1.11", "--criteria", "strict", *map(str, files)]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    accepted = run.returncode == 0 and run.stdout.count("All tests passed!") == len(files)
    return "" if accepted else run.stdout + run.stderr


def assert_cdo_reads(files: Sequence[Path], data: xr.DataArray, scratch: Path) -> None:
    """Assert that CDO finds the means and the land of `data` in files that follow each other in time."""
    whole = scratch / f"{data.name}-mean.nc"
    subprocess.run(["cdo", "-s", "-O", "-timmean", "-mergetime", *map(str, files), str(whole)], check=True)
    with xr.open_dataset(whole, decode_times=False) as found:
        (name,) = [name for name, one in found.data_vars.items() if one.ndim == 3]
        expected = data.astype("f8").mean("time", skipna=False)
        np.testing.assert_array_equal(found[name].isel(time=0).isnull(), expected.isnull())
        np.testing.assert_allclose(found[name].isel(time=0), expected, rtol=1e-6)
