"""Runs of experiments: builds the network, starts controller and workers, plays the events, and gives the verdict."""
