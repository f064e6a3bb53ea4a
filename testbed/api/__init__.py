"""One API over whatever runs: a network that is up, or an experiment. HTTP and a stream, for commands, pages, programs.

A `Subject` is what an API is over; networks and runs implement it, and this room knows neither.
"""
