"""What `benchmarks.frontier` measures, and how it is shown."""
