"""Several tasks as one submission: the model of a bundle, the scripts of the job and its members, and the pilot.

Imports `schedulers`; only `members` and `pilot` import `lifecycle`, for records and their files. Gives the job manager
the text of a submission, and tells which members have begun and ended.
"""
