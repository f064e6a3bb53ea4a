"""Simulates an experiment: rounds and messages over simulated links, under the controller of a live run."""
