"""Hierarchical local SGD is local SGD at each member: the plan says which rounds are among all."""

from __future__ import annotations

from testbed.schemes.local_sgd.algorithm import build

__all__ = ["build"]
