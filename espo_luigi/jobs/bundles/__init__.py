"""Several tasks as one submission: the scripts of the job and its members, and the pilot.

Imports `schedulers`; `pilot` forks with `forkserver`. Gives the job manager the text of a submission.
"""
