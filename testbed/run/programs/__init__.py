"""Experiments and launches whose training is a command of somebody else's."""
