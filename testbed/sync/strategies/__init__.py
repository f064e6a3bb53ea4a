"""How often members synchronize, and what: one strategy a file. The training loop stays the user's."""

from __future__ import annotations

from testbed.sync.strategies.diloco import DiLoCo, Streaming
from testbed.sync.strategies.fragment import Fragment
from testbed.sync.strategies.gradients import Gradients
from testbed.sync.strategies.local import LocalSgd
from testbed.sync.strategies.periodic import Periodic
from testbed.sync.strategies.post_local import PostLocalSgd
from testbed.sync.strategies.powersgd import PowerSgd
from testbed.sync.strategies.strategy import Reducer, Strategy

__all__ = [
    "DiLoCo",
    "Fragment",
    "Gradients",
    "LocalSgd",
    "Periodic",
    "PostLocalSgd",
    "PowerSgd",
    "Reducer",
    "Strategy",
    "Streaming",
]
