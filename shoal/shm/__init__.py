"""Channels as bytes in shared memory: where they lie, rings, parameter stores, and the ends that roles hold."""
