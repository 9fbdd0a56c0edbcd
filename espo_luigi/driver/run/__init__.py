"""A driver's run: which tasks remain, which outputs are still needed, the engines, and `run.json`."""
