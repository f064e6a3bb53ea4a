"""What is measured, how it is estimated, where it is kept."""
