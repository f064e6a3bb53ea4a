"""Traces: what a link did over time. Pure values: parse, generate, look up."""
