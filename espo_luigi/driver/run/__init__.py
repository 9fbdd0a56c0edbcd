"""A driver's run: which tasks remain, which are stale, and which outputs are still needed.

The worker reports to it, and `espo plan` walks graphs with it.
"""
