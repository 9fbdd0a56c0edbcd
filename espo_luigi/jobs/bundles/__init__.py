"""Several tasks as one submission: what a bundle is, its members' files, and the scripts that run the members.

Imports `schedulers`, not `lifecycle`. Gives the job manager what to submit and which members have begun and ended.
"""
