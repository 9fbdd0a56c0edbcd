"""Running jobs, here or on a cluster: orders in, results out. It imports no Luigi, no xarray and no configuration.

Of the rest of espo_luigi it needs `errors`. Entry points: `order.JobOrder` (what a job is), `local.LocalEngine` and
`batch.BatchEngine` (who runs it), `node.run_order` (what happens where it runs), `scheduler.Scheduler` (what another
scheduler has to be: text in, text out; `slurm` and `sge` are, and `schedulers` lists them). Slurm's alone are bundles,
`allocation`, `allocation_session`, `slurm_steps` and `driver_job`.
"""
