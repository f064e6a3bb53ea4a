"""A testbed for training across data centres: emulate the network, train for real, trust the numbers.

    from testbed import Testbed, execute

    with Testbed("topologies/quickstart.yaml") as testbed:
        testbed.links["toronto->tokyo"].change(rate="5mbit")
    result = execute("experiments/quickstart.yaml")

What has a name here is public, and loaded when it is first asked for. See docs/python.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.emulation.containers.fleet import ProgramContainers as ProgramContainers
    from testbed.emulation.containers.fleet import ScratchSpace as ScratchSpace
    from testbed.emulation.errors import EmulationError as EmulationError
    from testbed.emulation.testbed import Testbed as Testbed
    from testbed.resources import __version__ as __version__
    from testbed.result import Result as Result
    from testbed.result import execute as execute
    from testbed.spec.errors import SpecError as SpecError

_MODULES = {
    "EmulationError": "testbed.emulation.errors",
    "ProgramContainers": "testbed.emulation.containers.fleet",
    "Result": "testbed.result",
    "ScratchSpace": "testbed.emulation.containers.fleet",
    "SpecError": "testbed.spec.errors",
    "Testbed": "testbed.emulation.testbed",
    "__version__": "testbed.resources",
    "execute": "testbed.result",
}

__all__ = ["EmulationError", "ProgramContainers", "Result", "ScratchSpace", "SpecError", "Testbed", "execute"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
