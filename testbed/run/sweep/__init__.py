"""Many runs of one experiment: sweeps and comparisons, and the record that they leave."""
