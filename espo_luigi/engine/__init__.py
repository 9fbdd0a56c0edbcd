"""Running Luigi tasks as jobs: the task class, the worker that waits without processes, and the engines."""
