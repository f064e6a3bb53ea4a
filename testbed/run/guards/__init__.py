"""Deadlines and checks that end a run which can't continue."""
