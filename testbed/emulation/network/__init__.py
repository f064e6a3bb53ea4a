"""Nodes, namespaces, routes and links of the kernel: the network, and how it becomes another one."""
