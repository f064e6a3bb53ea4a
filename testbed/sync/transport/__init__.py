"""Connections between members: frames, queues and meters. Knows no algorithm."""
