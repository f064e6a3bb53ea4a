"""Benchmarks against peers, one module a claim: `python -m benchmarks.NAME [--quick] [--json]`; figures in results/."""
