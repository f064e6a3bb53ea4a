"""The gossip coordinator: iterations, changes of the graph, and members that leave and join. No I/O."""
