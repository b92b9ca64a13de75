"""Reading and writing of all files of a run: metrics, logs, checkpoints, evaluations, and the run directory itself."""
