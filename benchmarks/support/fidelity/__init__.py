"""Measurements of a shaped link from outside, the same for the testbed's and a peer's."""
