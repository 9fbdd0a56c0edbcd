"""A job on its node: it reads its order, works, writes heartbeats, checks its claim, and writes its result.

Runs in the job's process, never in the driver. It knows no commands of schedulers.
"""
