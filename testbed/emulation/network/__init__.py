"""Nodes, namespaces, routes and links in the kernel, and the swap of one network for another."""
