"""Metrics of a run in progress: recorders, snapshots, time shares, traces, the bottleneck."""
