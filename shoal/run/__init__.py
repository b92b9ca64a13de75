"""The front door: train, resume and evaluate; what a run leaves behind."""

from shoal.run.run import Run as Run, resume as resume, train as train
