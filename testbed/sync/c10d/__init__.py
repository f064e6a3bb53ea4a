"""The `torch.distributed` backend `wan`: the only code that uses c10d, whose interface changes between releases.

large sums of floats   -->  a session of all the group's ranks: plans, which change during training
all other collectives  -->  gloo, over the same store
"""

from __future__ import annotations

from testbed.sync.c10d.process_group import WanGroup, make_group

__all__ = ["WanGroup", "make_group"]
