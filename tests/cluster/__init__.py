"""Clusters of pretended hosts: what `make cluster-test` tries. It is not part of `make test`."""
