"""Values and state of a run that every layer above shares. No I/O."""
