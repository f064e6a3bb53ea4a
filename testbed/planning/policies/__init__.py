"""The policies: one a file, each of which enters itself into the registry."""
