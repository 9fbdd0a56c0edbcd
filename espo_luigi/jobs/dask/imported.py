"""Imports Dask, which reads the user's own files of its settings meanwhile: a damaged file is told with its place."""

import sys

from espo_luigi.errors import ConfigurationError

try:
    import dask  # noqa: F401
except ValueError as unreadable:
    if not str(unreadable).startswith("A dask config file"):  # of the user's own
        raise
    said = f"{' '.join(str(unreadable).split())}: correct or remove that file, which all jobs read"
    if "luigi.cmdline" in sys.modules:  # which imports the module of tasks, and would show a traceback
        raise SystemExit(f"Nothing was started: {said}") from None
    raise ConfigurationError(said) from None
