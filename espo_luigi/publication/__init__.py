"""What a run has kept, so that others find it: a catalogue of the products, and where each comes from."""
