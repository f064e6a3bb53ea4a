"""What is measured against peers, one module a claim: `python -m benchmarks.NAME [--quick] [--json]`."""
