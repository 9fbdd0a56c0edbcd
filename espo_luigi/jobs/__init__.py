"""Jobs, here or on a cluster: orders in, results out. It imports no Luigi, no xarray and no configuration.

- `order.JobOrder` is a job; `order.Engine` runs it: `local.LocalEngine`, or `engine.BatchEngine` on a cluster.
- `lifecycle` follows a cluster's jobs from order to outcome, `schedulers` speaks with Slurm and Grid Engine, `bundles`
  puts several tasks into one job.
- `node` is the code that runs in a job, `dask` its sessions.

Of the rest of espo_luigi it imports `errors` and `files`.
"""
