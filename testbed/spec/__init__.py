"""What a user writes: topology and experiment files, as typed and validated values."""
