"""Make the golden results of several variables together, by Alex Cannon's R package MBC (CRAN, version 0.10-6).

From the project's root, with R and the package's file R/MBC-QDM.R (GPL-2: it is run, no part of it is kept):

    python tests/golden/make_mbcn.py MBC-QDM.R tests/data/golden

Its lines `library(Matrix)`, `library(energy)` and `library(FNN)` can be left out: MBCn needs them for a score only,
which is not asked for. The rotations are R's own, with seed 44.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import xarray as xr

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from together_samples import N_ITER, SOURCES, Source, sample

# `whole` is MBCn as the package has it: adjusted values of both periods are standardised together, then turned. `ranks`
# are those that the rotations alone give to unadjusted values, each part standardised by itself, as xsdba does.
# Observations are there twice, as many days as both periods have: otherwise the package's n - 1 in the standard
# deviation makes simulations 1 / 4n larger, which changes ranks. Their n quantiles stay the same.
# With trace 0, a ratio is that of QDM: no value is censored or limited.
SCRIPT = """
given <- commandArgs(trailingOnly=TRUE)
source(given[1])
table <- function(name) as.matrix(read.csv(file.path(given[2], name), header=FALSE))
put <- function(values, name) {
    write.table(format(values, digits=17), file.path(given[2], name), sep=",", quote=FALSE, row.names=FALSE,
                col.names=FALSE)
}
n <- as.integer(given[3])
rotations <- table("rotations.csv")
k <- ncol(rotations)
rot <- lapply(seq(n), function(i) rotations[seq((i - 1) * k + 1, i * k), ])
whole <- MBCn(table("o.csv"), table("c.csv"), table("p.csv"), iter=n, ratio.seq=given[5:(4 + k)] == "TRUE", trace=0,
              rot.seq=rot, silent=TRUE)
put(whole$mhat.c, "whole-c.csv")
put(whole$mhat.p, "whole-p.csv")
zo <- table("zo.csv")
turned <- MBCn(rbind(zo, zo), table("zc.csv"), table("zp.csv"), iter=n, rot.seq=rot, qmap.precalc=TRUE, silent=TRUE)
put(apply(turned$mhat.c, 2, rank), "ranks-c.csv")
put(apply(turned$mhat.p, 2, rank), "ranks-p.csv")
"""
ROTATIONS = """
given <- commandArgs(trailingOnly=TRUE)
source(given[1])
set.seed(44)
all <- do.call(rbind, lapply(seq(as.integer(given[3])), function(i) rot.random(as.integer(given[4]))))
write.table(format(all, digits=17), file.path(given[2], "rotations.csv"), sep=",", quote=FALSE, row.names=FALSE,
            col.names=FALSE)
"""


def run(script: str, *given: object) -> None:
    """Run a text in R."""
    with tempfile.NamedTemporaryFile("w", suffix=".R") as file:
        file.write(script)
        file.flush()
        subprocess.run(["Rscript", "--vanilla", file.name, *map(str, given)], check=True)


def standardised(values: np.ndarray) -> np.ndarray:
    """By each variable's own mean and standard deviation."""
    return (values - values.mean(-1, keepdims=True)) / values.std(-1, keepdims=True)


def make(source: Source, package: Path) -> xr.Dataset:
    """Return rotations, R's values, and R's ranks (variable, cell, day)."""
    parts = dict(zip("ocp", sample(source), strict=True))
    shape = parts["o"].shape
    names = ("whole-c", "whole-p", "ranks-c", "ranks-p")
    got = {name: np.empty(parts[name[-1]].shape) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        run(ROTATIONS, package, folder, N_ITER, shape[0])
        rotations = np.loadtxt(f"{folder}/rotations.csv", delimiter=",")
        for cell in range(shape[1]):
            for name, values in parts.items():
                np.savetxt(f"{folder}/{name}.csv", values[:, cell].T, delimiter=",", fmt="%.17g")
                np.savetxt(f"{folder}/z{name}.csv", standardised(values[:, cell]).T, delimiter=",", fmt="%.17g")
            ratios = ["TRUE" if variable == "pr" else "FALSE" for variable in source.variables]
            run(SCRIPT, package, folder, N_ITER, shape[0], *ratios)
            for name in names:
                got[name][:, cell] = np.loadtxt(f"{folder}/{name}.csv", delimiter=",").T
    result = xr.Dataset(
        {
            "rotation": (("iteration", "variable", "turned"), rotations.reshape(N_ITER, shape[0], shape[0])),
            "mhat_c": (("variable", "cell", "day"), got["whole-c"].astype("f4")),
            "mhat_p": (("variable", "cell", "day_p"), got["whole-p"].astype("f4")),
            "rank_c": (("variable", "cell", "day"), got["ranks-c"].astype("i2")),
            "rank_p": (("variable", "cell", "day_p"), got["ranks-p"].astype("i2")),
        },
        {"variable": list(source.variables)},
    )
    result.attrs["settings"] = (
        f"MBC 0.10-6, MBCn: iter={N_ITER}, ratio.seq TRUE for pr, trace=0, jitter.factor=0, n.tau=NULL, ties='first', "
        "pp.type=7; ranks: qmap.precalc=TRUE, ratio.seq FALSE, values standardised before, observations twice"
    )
    return result


def main(package: Path, folder: Path) -> None:
    """Write a file for each source."""
    for source in SOURCES:
        result = make(source, package)
        packed = {name: {"zlib": True, "complevel": 9, "shuffle": True} for name in result.data_vars}
        result.to_netcdf(folder / f"mbcn-{source.name}.nc", encoding=packed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
