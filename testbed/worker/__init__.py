"""The container's main program: `python -m testbed.worker`."""
