"""The run of one driver: which tasks remain, which outputs are still needed, the engines, and `run.json`."""
