"""Everything that touches Luigi's insides: the worker, its threads, the schedulers, and `install`."""
