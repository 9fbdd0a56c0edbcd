"""Pure functions on daily climate data: xarray in, xarray out.

No module here imports Luigi, opens a path or knows the configuration; arguments are explicit. Subfolders follow the
production: `extract`, `diagnose`, `finalize`, `outcomes`; `geometry` and the modules beside it serve all of these.
"""
