"""Dask sessions: inside of a job, on all nodes of a job, or with workers in separate jobs.

Imports `schedulers` and the resources of a job. Gives a client that is connected and as large as the allocation. Of
workers in separate jobs, the job manager knows only `jobs.orphans` and `jobs.owner_of`, and orders only a table.
"""
