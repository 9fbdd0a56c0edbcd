"""Jobs without a scheduler: children of the driver on this machine, or steps of the driver's own allocation."""
