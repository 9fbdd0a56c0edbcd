"""What each unusual device of the kernels earns: the same step with the device and with plain code in its place.

Both sides take turns on one thread in one process, from the same compiled source but for the function that is replaced;
a figure is the median of the ratios of CPU times of each turn. Prints a table and, as its last line, the same as JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from adjustment import Series, make, our_steps

from espo_luigi.methods.dqm import quantile_mapping
from espo_luigi.methods.dqm.kernels import compiled
from espo_luigi.methods.dqm.kernels.bits import trailing_zeros
from espo_luigi.methods.dqm.kernels.compiled import inlined
from espo_luigi.methods.dqm.kernels.quantiles import anomaly, quantiles_of_sorted

MODULES = ("bits", "sorting", "loess", "quantiles", "preparation", "adapting", "training", "adjusting")
PACKAGE = compiled.__package__
# The kernel that does a step, and its module.
KERNELS = {
    "prepare": ("preparation", "adapt_cells"),
    "train": ("training", "train_cells"),
    "adjust": ("adjusting", "adjust_cells"),
}
_ONE = np.uint64(1)


# Plain code in the place of each device


def sorted_window(ranks, sorted_values, plan, quantiles, multiplicative, means, out):  # type: ignore[no-untyped-def]
    """Replace `window_quantiles`: gather and sort each day's window."""
    half = plan.window // 2
    window = np.empty(ranks.size, dtype=out.dtype)
    for group in range(means.size):
        count = 0
        for centre in plan.centres[plan.centre_start[group] : plan.centre_start[group + 1]]:
            for place in range(max(centre - half, 0), min(centre + half + 1, ranks.size)):
                if ranks[place] < sorted_values.size:
                    window[count] = anomaly(out, sorted_values[ranks[place]], means[group], multiplicative)
                    count += not np.isnan(window[count])
        window[:count].sort()
        quantiles_of_sorted(window[:count], quantiles, out[group])


def argsorted(values, keys, ranks, sorted_values):  # type: ignore[no-untyped-def]
    """Replace `sort_cell`: numpy's argsort."""
    valid = np.flatnonzero(~np.isnan(values))
    order = valid[np.argsort(values[valid], kind="mergesort")]
    ranks[:] = values.size
    for rank in range(order.size):
        ranks[order[rank]] = rank
        sorted_values[rank] = values[order[rank]]
    return order.size


def nth_bit_by_clearing(word, n):  # type: ignore[no-untyped-def]
    """Replace `nth_bit`: clear the lowest bit as often as needed."""
    for _ in range(n):
        word &= word - _ONE
    return trailing_zeros(word)


def sums_one_by_one(padded, window, strided, total):  # type: ignore[no-untyped-def]
    """Replace `tile_sums`: each window by itself, eight sums of every eighth value, in numpy's order."""
    done = window - window % 8 if window >= 8 else 1
    parts = np.empty(8, dtype=total.dtype)
    for place in range(total.size):
        total[place] = padded[place]
        if window >= 8:
            for lane in range(8):
                parts[lane] = padded[place + lane]
            for offset in range(8, done, 8):
                for lane in range(8):
                    parts[lane] += padded[place + offset + lane]
            left = (parts[0] + parts[1]) + (parts[2] + parts[3])
            total[place] = left + ((parts[4] + parts[5]) + (parts[6] + parts[7]))
        for offset in range(done, window):
            total[place] += padded[place + offset]


def bisected(x, row, middles):  # type: ignore[no-untyped-def]
    """Replace `nearest_in_row`: a bisection."""
    return np.uint64(np.searchsorted(middles[row], x))


def weigh_plainly(rows, first, weights, which, out):  # type: ignore[no-untyped-def]
    """Replace `weigh_rows`: add row after row in memory."""
    out[which] = 0
    for index in range(weights.shape[1]):
        for place in range(out.shape[1]):
            out[which, place] += weights[which, index] * rows[first + index, place]


@dataclass(frozen=True)
class Device:
    """A device, the function that has it, what does the same without, and the variable and step that are timed."""

    name: str
    replaced: str
    plain: Callable[..., Any]
    variable: str
    step: str


DEVICES = (
    Device("bit sets over ranks, against sorting each window", "window_quantiles", sorted_window, "tasmax", "train"),
    Device("radix sort, against argsort", "sort_cell", argsorted, "tasmax", "train"),
    Device("radix sort, against argsort", "sort_cell", argsorted, "pr", "prepare"),
    Device("the n-th bit after Vigna, against clearing bits", "nth_bit", nth_bit_by_clearing, "tasmax", "train"),
    Device("shared partial sums, against each window by itself", "tile_sums", sums_one_by_one, "tasmax", "train"),
    Device("shared partial sums, against each window by itself", "tile_sums", sums_one_by_one, "tasmax", "adjust"),
    Device("comparing all quantiles, against a bisection", "nearest_in_row", bisected, "tasmax", "adjust"),
    Device("weigh_rows, against plain loops", "weigh_rows", weigh_plainly, "tasmax", "adjust"),
)


def load(changes: dict[str, Any]) -> dict[str, ModuleType]:
    """Load the kernel modules once more, not kept on disk, with functions replaced wherever their names stand."""
    names = [f"{PACKAGE}.{module}" for module in MODULES]
    kept = {name: sys.modules.pop(name) for name in names}
    keeping, compiled.compiled = compiled.compiled, inlined
    try:
        loaded = [importlib.import_module(name) for name in names]
    finally:
        compiled.compiled = keeping
        sys.modules.update(kept)
        for name, module in kept.items():
            setattr(sys.modules[PACKAGE], name.rpartition(".")[2], module)
    for name, function in changes.items():
        having = [module for module in loaded if hasattr(module, name)]
        if not having:
            raise SystemExit(f"no module of the kernels has {name}; expected one: name its successor in DEVICES")
        for module in having:
            setattr(module, name, function)
    return dict(zip(MODULES, loaded, strict=True))


def turn(kernel: Callable[..., Any] | None, device: Device, series: Series) -> tuple[float, np.ndarray]:
    """Run the steps, the device's with this kernel if given; return its CPU seconds and the scenario."""
    _, name = KERNELS[device.step]
    own = getattr(quantile_mapping, name)
    setattr(quantile_mapping, name, kernel or own)
    try:
        seconds, scenario, _ = our_steps(device.variable, series, 1, time.thread_time)
    finally:
        setattr(quantile_mapping, name, own)
    return seconds[device.step], scenario


def measure(device: Device, series: Series, repeats: int) -> dict[str, Any]:
    changes = {device.replaced: inlined(getattr(device.plain, "py_func", device.plain))}
    module, name = KERNELS[device.step]
    without = getattr(load(changes)[module], name)
    for kernel in (None, without):
        turn(kernel, device, series.first(1))  # compiles
    ratios, times = [], []
    for _ in range(repeats):
        ours, scenario = turn(None, device, series)
        plain, other = turn(without, device, series)
        ratios.append(plain / ours)
        times.append(ours / len(scenario))
    off = np.mean(~((scenario == other) | (np.isnan(scenario) & np.isnan(other))))
    return {"ratio": float(np.median(ratios)), "ours_s": float(np.median(times)), "share_off": float(off)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=40)
    parser.add_argument("--years", type=int, default=151, help="years of the simulation")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", default="", help="devices whose name or function has this text")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    series = {variable: make(variable, options.cells, options.years) for variable in ("tasmax", "pr")}
    figures: dict[str, Any] = {"load_before": before}
    print(f"{'device':54}{'step':20}{'ours ms':>8}{'ratio':>7}{'share of values that differ':>29}")
    for device in DEVICES:
        if options.only in device.name or options.only in device.replaced:
            one = figures[f"{device.name} ({device.step})"] = measure(device, series[device.variable], options.repeats)
            step = f"{device.variable} {device.step}"
            print(f"{device.name:54}{step:20}{one['ours_s'] * 1e3:8.3f}{one['ratio']:7.2f}{one['share_off']:29.2g}")
            sys.stdout.flush()
    print(f"load average before {before:.1f}, after {os.getloadavg()[0]:.1f}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
