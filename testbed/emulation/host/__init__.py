"""This machine: what it can do, how much, and what mends it."""
