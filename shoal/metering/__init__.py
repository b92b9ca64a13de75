"""What a run says of itself while it goes on: recorders, snapshots, time shares, traces, the bottleneck."""
