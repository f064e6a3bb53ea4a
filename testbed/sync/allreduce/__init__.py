"""All-reduce over plans: what is added where, and who is sent what."""

from __future__ import annotations

from testbed.sync.allreduce.elastic import ElasticGroup
from testbed.sync.allreduce.engine import AllReduceEngine
from testbed.sync.allreduce.group import AllReduceGroup
from testbed.sync.allreduce.result import RoundResult
from testbed.sync.allreduce.sums import CODES as ELEMENT_TYPES

__all__ = ["ELEMENT_TYPES", "AllReduceEngine", "AllReduceGroup", "ElasticGroup", "RoundResult"]
