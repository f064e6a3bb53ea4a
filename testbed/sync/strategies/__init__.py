"""The strategies: when members synchronize, and what they reduce. The training loop stays the user's.

A name is loaded when it is first used, so that a scheme's file, which derives from `Strategy`, loads no PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.sync.strategies.diloco import DiLoCo as DiLoCo
    from testbed.sync.strategies.diloco import Streaming as Streaming
    from testbed.sync.strategies.fragment import Fragment as Fragment
    from testbed.sync.strategies.gradients import Gradients as Gradients
    from testbed.sync.strategies.local_sgd import LocalSgd as LocalSgd
    from testbed.sync.strategies.local_sgd import PostLocalSgd as PostLocalSgd
    from testbed.sync.strategies.periodic import Periodic as Periodic
    from testbed.sync.strategies.powersgd import PowerSgd as PowerSgd
    from testbed.sync.strategies.strategy import Reducer as Reducer
    from testbed.sync.strategies.strategy import Strategy as Strategy

_MODULES = {
    "DiLoCo": "diloco",
    "Fragment": "fragment",
    "Gradients": "gradients",
    "LocalSgd": "local_sgd",
    "Periodic": "periodic",
    "PostLocalSgd": "local_sgd",
    "PowerSgd": "powersgd",
    "Reducer": "strategy",
    "Strategy": "strategy",
    "Streaming": "diloco",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
