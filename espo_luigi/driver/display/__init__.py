"""The status of a run for people: a value (`status`), and rich's drawing of it in a terminal or as text (`live`).

Imports nothing of the driver. `driver.board` shows a run with it, `espo status` a run's file.
"""
