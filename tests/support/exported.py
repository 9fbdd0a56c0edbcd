"""Final archives of the small demo with a few invented years, for tests of the export; no other task needs to run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import xarray as xr
from complete_demo import DAY360, NOLEAP

from espo_luigi import store, tasks
from espo_luigi.science.finalize.quantization import round_bits
from espo_luigi.tasks.base import EspoTask

# Seven years: a file of four, and a file of three.
FIRST, LAST = 1991, 1997
METHODS = {"tasmax": "maximum", "tasmin": "minimum", "pr": "mean"}
# Of the raw files; a further file has none.
TRACKING_IDS = ("hdl:21.14100/one", "hdl:21.14100/two")
CALENDARS = {NOLEAP: "noleap", DAY360: "360_day"}


def product(calendar: str, bits: int | None = None) -> xr.Dataset:
    """A product of 12 x 10 cells as the 2024 workflow describes it, with sea in a corner; float32 coordinates."""
    time = xr.date_range(f"{FIRST}-01-01", f"{LAST}-12-30", calendar=calendar, use_cftime=True)
    time = time.append(time[-1:].shift(1, "D")) if calendar == "noleap" else time
    random = np.random.default_rng(len(time))
    means = {"tasmax": 285, "tasmin": 275, "pr": 3e-5}
    data = {}
    for name, mean in means.items():
        values = np.float32(mean * (1 + 0.05 * random.standard_normal((len(time), 12, 10))))
        values[:, :3, 6:] = np.nan
        attrs = {
            "units": "kg m-2 s-1" if name == "pr" else "K",
            "standard_name": "precipitation_flux" if name == "pr" else "air_temperature",
            "long_name": f"Daily {METHODS[name]} of {name}",
            "cell_methods": f"time: {METHODS[name]} within days",
        }
        data[name] = (("time", "lat", "lon"), values, attrs)
    lat = ("lat", np.float32(np.linspace(45, 47.75, 12)), {"standard_name": "latitude", "units": "degrees_north"})
    lon = ("lon", np.float32(np.linspace(-67, -64.75, 10)), {"standard_name": "longitude", "units": "degrees_east"})
    ds = xr.Dataset(data, {"time": time, "lat": lat, "lon": lon}, {"cat:source": "Demo", "history": "Invented."})
    return ds if bits is None else round_bits(ds, list(data), bits, version="1")


def make_archives(bits: int | None = None) -> dict[str, xr.Dataset]:
    """Publish the final archive of both simulations, and the tables with the ids of their raw files; by simulation."""
    made = {
        sim_id: product(calendar, bits).assign_attrs({"cat:id": sim_id, "cat:type": "simulation"})
        for sim_id, calendar in CALENDARS.items()
    }
    for sim_id, ds in made.items():
        task = tasks.ConcatenationFinal(sim_id=sim_id)
        write(task, ds, task.out_scenario().path)
        store.pack(task.out_scenario().path, task.out_final().path)
        checked = tasks.InputCheck(sim_id=sim_id)
        marker = replace(checked.marker(), inputs={f"{number}.nc": id for number, id in enumerate((*TRACKING_IDS, ""))})
        store.write_table((), [], checked.out_problems().path, marker)
    return made


def write(task: EspoTask, ds: xr.Dataset, path: Path) -> None:
    """Publish a dataset as an output of a task."""
    store.write_store(ds, path, task.marker(), chunks={"time": 4 * 360, "lat": 4, "lon": 9})
