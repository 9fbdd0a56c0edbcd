"""Schedulers as text: `base` defines the interface, `slurm` and `gridengine` fulfil it by pure functions.

`known` lists them, `commands` alone runs commands, `script` renders a job's script, and `site` checks a site's rules.
Imports the model of `bundles`. Gives all rooms of `jobs` the scheduler that they follow, submit to or run under.
"""
