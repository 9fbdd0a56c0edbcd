"""The part that depends on Luigi: the task whose work is a job, a run of such tasks, its display and settings.

It imports `jobs` and nothing of climate data, so that any Luigi project can use `SlurmTask`. `scheduler`, `threads`,
`worker` and `install` replace parts of Luigi.
"""
