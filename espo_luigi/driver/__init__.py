"""The part that depends on Luigi: the task whose work is a job, a run of such tasks, its display and settings.

It imports `jobs` and nothing of climate data, so that any Luigi project can use `SlurmTask`. No module needs one that
this order has later: `settings` (luigi.cfg); `status`, `screen`, `signals`, `board` (the account of a run and what
shows it); `engines`; `task`; `scratch`, `run`, `stale` (which tasks are left, and what they need); and the replacements
of Luigi's parts: `scheduler`, `threads`, `worker`, `install`.
"""
