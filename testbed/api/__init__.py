"""The HTTP API and its stream, over a network that is up or an experiment that runs, for commands, pages and programs.

A `Subject` is what the API serves. Networks and runs implement it; this room knows neither.
"""
