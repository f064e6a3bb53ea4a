"""A testbed for training across data centres: emulate the network, train for real, trust the numbers.

    from testbed import Testbed, execute

    with Testbed("topologies/quickstart.yaml") as testbed:
        testbed.links["toronto->tokyo"].change(rate="5mbit")
    result = execute("experiments/quickstart.yaml")

The names here are public; each is loaded when it is first asked for. See docs/python.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.lazy import lazy_names

if TYPE_CHECKING:
    from testbed.emulation.containers.fleet import ProgramContainers as ProgramContainers
    from testbed.emulation.containers.limits import ScratchSpace as ScratchSpace
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
    "ScratchSpace": "testbed.emulation.containers.limits",
    "SpecError": "testbed.spec.errors",
    "Testbed": "testbed.emulation.testbed",
    "__version__": "testbed.resources",
    "execute": "testbed.result",
}

__all__ = ["EmulationError", "ProgramContainers", "Result", "ScratchSpace", "SpecError", "Testbed", "execute"]

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
