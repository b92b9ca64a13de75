"""Finished runs read again: curves, statistics over seeds, plots, comparisons, profiles."""
