"""How a shaped link is measured from outside: the testbed's and a peer's alike."""
