"""All-reduce over plans: what is added where, and who is sent what."""

from __future__ import annotations

from testbed.sync.allreduce.chunk_codec import CODES as ELEMENT_TYPES
from testbed.sync.allreduce.elastic import ElasticGroup
from testbed.sync.allreduce.group import AllReduceGroup
from testbed.sync.allreduce.round import RoundResult

#: The all-reduce of a session: one group of fixed members, or one group for each generation of members.
AllReduceEngine = AllReduceGroup | ElasticGroup

__all__ = ["ELEMENT_TYPES", "AllReduceEngine", "AllReduceGroup", "ElasticGroup", "RoundResult"]
