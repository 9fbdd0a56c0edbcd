"""Slurm: submissions and directives (`submit`), answers of its commands (`parse`), steps, and drivers that are jobs."""
