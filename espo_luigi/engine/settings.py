"""The ``[espo]`` section of luigi.cfg: what to run, where, and by which engine."""

from __future__ import annotations

import shlex
from pathlib import Path

import luigi


class espo(luigi.Config):
    """Orchestration settings, from luigi.cfg's ``[espo]`` section or the command line (``--espo-engine slurm``)."""

    config = luigi.Parameter(
        default="", description="YAML files of the science and the site, in order, separated by spaces"
    )
    engine = luigi.ChoiceParameter(
        choices=["local", "slurm"], default="local", description="where the tasks' work runs"
    )
    workdir = luigi.Parameter(default="espo-work", description="folder of the run's job files, logs and records")
    keep_temporary = luigi.BoolParameter(
        default=False, parsing=luigi.BoolParameter.EXPLICIT_PARSING, description="keep intermediate outputs"
    )
    final_format = luigi.ChoiceParameter(
        choices=["zip", "sharded"], default="zip", description="kept archives: .zarr.zip, or sharded .zarr"
    )
    local_cpus = luigi.IntParameter(
        default=0, description="CPUs that the local engine may use; 0: all of this machine's"
    )
    local_memory = luigi.Parameter(
        default="",
        description="memory that the local engine may use, such as 16GB; empty: nine tenths of this machine's",
    )
    dashboard = luigi.BoolParameter(
        default=False, parsing=luigi.BoolParameter.EXPLICIT_PARSING, description="start Dask's dashboard in each job"
    )

    @property
    def config_files(self) -> tuple[Path, ...]:
        """The configuration's files, in order."""
        words = shlex.shlex(self.config, posix=True, punctuation_chars="")
        words.whitespace, words.whitespace_split, words.commenters = " ,\t\n", True, ""
        return tuple(Path(word) for word in words)


def settings() -> espo:
    """Return the current settings."""
    return espo()
