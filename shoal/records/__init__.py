"""Every file of a run, written and read: metrics, logs, checkpoints, evaluations, the directory itself."""
