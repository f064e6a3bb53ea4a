"""Tests on pretended hosts, run by `make cluster-test` and not by `make test`."""
