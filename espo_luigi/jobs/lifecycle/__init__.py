"""The life of a job on a cluster: its record on disk, its state, the next action, and the manager's thread.

Imports `schedulers` and `bundles`, never an engine or Luigi. Gives outcomes to
the engine (`jobs.engine`).
"""
