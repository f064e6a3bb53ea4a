"""Without I/O: members that reduce in rounds, how they come and go, and how plans take force."""
