"""What `benchmarks.cpn` measures, and how it is shown."""
