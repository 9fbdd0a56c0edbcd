"""A run's products, published: a catalogue that lists them, and a crate that says where each comes from.

Imports `store`, from whose markers it reads everything, and `jobs.lock`. Gives `tasks.publish` both files.
"""
