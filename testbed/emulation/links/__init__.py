"""The state of each link over time: changes, the replay of traces, recent history and measurement."""
