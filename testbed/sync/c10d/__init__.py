"""The `torch.distributed` backend `wan`: the one room that knows c10d, whose interface moves between releases.

large sums of floats  -->  a session over all of the group's ranks: plans, changed while training goes on
all else              -->  gloo, over the same store
"""

from __future__ import annotations

from testbed.sync.c10d.process_group import WanGroup, make_group

__all__ = ["WanGroup", "make_group"]
