"""A run from outside: what it would do and cost, how it stands, and what a task waits for."""
