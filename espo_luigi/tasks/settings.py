"""What ESPO-G adds to the ``[espo]`` section of luigi.cfg."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path

import luigi

from espo_luigi.driver.settings import espo as driver


class espo(driver.espo):
    """Orchestration settings, from luigi.cfg's ``[espo]`` section or the command line (``--espo-config my.yml``)."""

    config = luigi.Parameter(
        default="", description="YAML files of the science and the site, in order, separated by spaces"
    )
    keep_temporary = luigi.BoolParameter(
        default=False, parsing=luigi.BoolParameter.EXPLICIT_PARSING, description="keep intermediate outputs"
    )
    rerun = luigi.ChoiceParameter(
        choices=["missing", "stale"],
        default="missing",
        description="what is made again: what is missing, or also what the configuration or raw files changed for",
    )
    final_format = luigi.ChoiceParameter(
        choices=["zip", "sharded"], default="zip", description="kept archives: .zarr.zip, or sharded .zarr"
    )
    report = luigi.BoolParameter(
        default=False, parsing=luigi.BoolParameter.EXPLICIT_PARSING, description="All makes the report, too"
    )
    publish = luigi.BoolParameter(
        default=False,
        parsing=luigi.BoolParameter.EXPLICIT_PARSING,
        description="All ends with the catalogue of the products, and where each comes from",
    )
    learn_from = luigi.Parameter(
        default="", description="work folders of other runs, whose jobs teach `espo plan` what a task costs"
    )

    @property
    def config_files(self) -> tuple[Path, ...]:
        """The configuration's files, in order."""
        return _paths(self.config)

    @property
    def experienced(self) -> tuple[Path, ...]:
        """The work folders from whose jobs a task's cost is estimated, this run's first."""
        return Path(self.workdir), *_paths(self.learn_from)


@functools.lru_cache(maxsize=16)
def _paths(text: str) -> tuple[Path, ...]:
    words = shlex.shlex(text, posix=True, punctuation_chars="")
    words.whitespace, words.whitespace_split, words.commenters = " ,\t\n", True, ""
    return tuple(Path(word) for word in words)


def settings() -> espo:
    """Return the current settings."""
    current = driver.settings()
    return current if isinstance(current, espo) else espo()
