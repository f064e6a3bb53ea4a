"""What a run is: values and state that every layer above shares, without I/O."""
