"""Without I/O: members that gossip over a graph, and how they go over to another one."""
