"""A network that stays up in the background, and what is asked of it."""
