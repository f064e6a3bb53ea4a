"""The cells of `benchmarks.cpn`, and its tables."""
