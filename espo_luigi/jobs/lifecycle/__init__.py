"""The life of a job on a cluster: its record on disk, its state, the decision what follows, and the manager's thread.

Imports `schedulers` and `bundles`, but no engine and nothing of Luigi. Gives outcomes to the engine (`jobs.engine`).
"""
