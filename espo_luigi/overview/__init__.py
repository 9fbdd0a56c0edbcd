"""A run from outside: its plan and cost, how it stands, and why a task is not done.

It reads tasks and files, takes no lock and changes nothing. `standing.TaskState` defines the states of a task.
"""
