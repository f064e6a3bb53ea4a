"""The strategies, which decide when members synchronize and which tensors they reduce, around the user's loop.

A name is loaded when it is first used, so that a scheme's file, which derives from `Strategy`, loads no PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.lazy import lazy_names

if TYPE_CHECKING:
    from testbed.sync.strategies.diloco import DiLoCo as DiLoCo
    from testbed.sync.strategies.fragment import Fragment as Fragment
    from testbed.sync.strategies.gradients import Gradients as Gradients
    from testbed.sync.strategies.gradients import PowerSgd as PowerSgd
    from testbed.sync.strategies.local_sgd import LocalSgd as LocalSgd
    from testbed.sync.strategies.local_sgd import PostLocalSgd as PostLocalSgd
    from testbed.sync.strategies.periodic import Periodic as Periodic
    from testbed.sync.strategies.strategy import Reducer as Reducer
    from testbed.sync.strategies.strategy import Strategy as Strategy

_MODULES = {
    "DiLoCo": f"{__name__}.diloco",
    "Fragment": f"{__name__}.fragment",
    "Gradients": f"{__name__}.gradients",
    "LocalSgd": f"{__name__}.local_sgd",
    "Periodic": f"{__name__}.periodic",
    "PostLocalSgd": f"{__name__}.local_sgd",
    "PowerSgd": f"{__name__}.gradients",
    "Reducer": f"{__name__}.strategy",
    "Strategy": f"{__name__}.strategy",
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
