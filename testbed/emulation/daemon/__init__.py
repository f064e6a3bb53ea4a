"""The process that keeps a network up in the background, and its answers to the API."""
