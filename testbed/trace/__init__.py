"""Traces: the values of a link over time, read, generated and looked up. Pure but for reading and writing files."""
