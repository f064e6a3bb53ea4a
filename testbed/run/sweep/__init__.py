"""Sweeps and comparisons: many runs of one experiment, and their record."""
