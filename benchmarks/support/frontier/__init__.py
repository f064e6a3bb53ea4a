"""The cells of `benchmarks.frontier`, their measurement, and its tables."""
