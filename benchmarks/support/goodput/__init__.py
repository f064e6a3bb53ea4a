"""The members of other systems in `benchmarks.goodput`, and the settings that all systems train with."""
