"""Experiments and launches in which the user's own command trains."""
