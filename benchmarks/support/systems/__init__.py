"""The cells of `benchmarks.systems`, and the programs of systems that need examples/gpt.py changed."""
