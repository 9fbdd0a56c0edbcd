"""The products of a run for others: a catalogue of them, and where each comes from."""
