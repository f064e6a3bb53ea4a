"""The files that users write, as typed and validated values: topologies, experiments, sweeps and hosts files."""
