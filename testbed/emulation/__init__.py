"""The emulated network: Mininet nodes, containers as hosts, shaped links, the replay of traces, and clean-up."""
