"""All that leans on Luigi: the task whose work is a job, the worker that waits without processes, the schedulers.

`install` puts them in place; `private_names` lists what of Luigi's insides they rely on.
"""
