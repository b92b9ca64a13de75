"""Analysis of runs: curves, statistics over seeds, plots, comparisons, profiles."""
