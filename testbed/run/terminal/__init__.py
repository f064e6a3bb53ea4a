"""The terminal output of a run."""
