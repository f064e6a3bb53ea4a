"""What a run came to: its summary, bounds and verdict, made of its records."""
