"""The HTTP API and its stream, over a network that is up or an experiment that runs, for commands, pages and programs.

The API serves a `Subject`. Networks and runs implement it; this package imports neither.
"""
