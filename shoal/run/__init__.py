"""Training, resuming and evaluating runs, and access to their results."""

from shoal.run.evaluation import Evaluation as Evaluation
from shoal.run.options import RunOptions as RunOptions
from shoal.run.population.search import pbt as pbt
from shoal.run.programs import launch as launch
from shoal.run.resuming import resume as resume
from shoal.run.run import Run as Run, evaluate as evaluate, load as load
from shoal.run.training import start as start, train as train
