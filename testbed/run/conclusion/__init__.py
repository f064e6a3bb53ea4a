"""A run's summary, bounds and verdict, computed from its records."""
