"""A run from outside: its plan and cost, how it stands, and why a task is not done."""
