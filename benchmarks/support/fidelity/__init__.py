"""Measurements of a shaped link from outside, the same for the testbed's link and a peer's."""
