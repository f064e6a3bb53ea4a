"""Runs of experiments: build the network, start controller and workers, play the events, and give the verdict."""
