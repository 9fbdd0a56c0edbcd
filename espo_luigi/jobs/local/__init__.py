"""Jobs without a scheduler: children of the driver on this machine, or steps of the driver's own allocation.

Imports `order`, `resources` and the standing of jobs from `lifecycle.state`. Gives `driver` an engine.
"""
