"""The built-in example: invented daily weather, as raw files of two simulations and a reference, with their catalogues.

Nothing here is a measurement or a model's output. The simulations are wrong on purpose, each in its own way (mean,
seasons, drizzle or drought), so that a run of the demo shows the gain of the adjustment.
"""

from espo_luigi.demo.make import ensure_demo

__all__ = ["ensure_demo"]
