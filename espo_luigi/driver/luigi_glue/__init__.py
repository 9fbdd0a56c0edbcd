"""The replacements of Luigi's parts: the worker, its threads, the schedulers, and `install`.

Only `driver` imports these parts of Luigi.
"""
