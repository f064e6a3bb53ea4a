"""What ends a run that can't go on, or would never end."""
