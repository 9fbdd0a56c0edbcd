"""A driver's run: which tasks remain, which outputs are still needed, the engines, and `run.json`.

It imports the settings, the display and `jobs`. The worker reports to it, `espo plan` walks graphs with it, and
`espo status` reads the file that `board` writes.
"""
