"""The Docker engine, images, and the workers' containers."""
