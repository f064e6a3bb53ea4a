"""Members that gossip: written as programs without a transport, whose effects a driver carries out."""
