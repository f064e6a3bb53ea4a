"""The all-reduce coordinator: rounds, swaps of plans, and members that leave and join. No I/O."""
