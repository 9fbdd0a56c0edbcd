"""The part that depends on Luigi: the task whose work is a job, a run of such tasks, its display and settings.

It imports `jobs` and nothing of climate data, so that any Luigi project can use `SlurmTask`. `luigi_glue` replaces
parts of Luigi, `run` knows what remains of a run, `board` keeps its account, `settings` reads luigi.cfg.
"""
