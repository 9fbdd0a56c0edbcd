"""A run's products, published: a catalogue that lists them, and a crate that says where each comes from."""
