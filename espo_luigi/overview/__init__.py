"""A run from outside: its plan and cost, how it stands, and why a task is not done.

It reads tasks and files, takes no lock and changes nothing. `states.TaskStatus` defines the states of a task.
"""
