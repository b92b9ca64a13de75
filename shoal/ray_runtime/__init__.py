"""The Ray runtime: the local runtime's processes on every node of a cluster, and what crosses between nodes."""
