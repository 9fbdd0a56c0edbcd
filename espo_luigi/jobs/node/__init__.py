"""One job on its node: reads its order, works, gives signs of life, checks its claim, and writes its result.

Runs in the job's process, never in the driver. Imports `dask` for the session; knows no scheduler's commands.
"""
