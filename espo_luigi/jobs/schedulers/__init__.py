"""Schedulers as text: `base` defines the interface, `slurm` and `gridengine` fulfil it by pure functions.

`known` lists them, `commands` alone runs commands, `script` renders a job's script, and `site` checks a site's rules.
Imports `bundles` for the text of bundles; a driver that is a job (`slurm.driver_job`) also reads records. Gives all
rooms of `jobs` the scheduler that they follow, submit to or run under.
"""
