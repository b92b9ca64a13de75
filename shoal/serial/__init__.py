"""The serial runtime: a whole program in one deterministic process."""
