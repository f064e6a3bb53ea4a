"""A testbed for training across data centres: emulate the network, train for real, trust the numbers."""

__version__ = "0.1.0"
