"""Dask sessions: inside of a job, on all nodes of a job, or with workers that are jobs of their own.

Imports `schedulers` and the resources of a job. Gives a client that is connected and as large as the allocation.
"""
