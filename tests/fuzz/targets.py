"""All that is fuzzed, by name. A target is loaded when it is asked for: what it reads with is instrumented then, and
what only others need takes no time.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from tests.fuzz.target import Target

#: Targets, by the module that has them.
MODULES = {
    "files": ("csv", "mahimahi", "iperf3", "topology", "gml", "graphml", "experiment", "overrides"),
    "messages": ("message", "plan"),
    "controllers": ("controller", "gossip-controller"),
    "peers": ("round", "gossip", "greeting", "request", "means", "state", "holdings"),
    "requests": ("owner", "access"),
}
NAMES = tuple(name for names in MODULES.values() for name in names)


@cache
def target(name: str) -> Target:
    """The target of a name."""
    (module,) = (module for module, names in MODULES.items() if name in names)
    (found,) = (found for found in import_module(f"tests.fuzz.{module}").TARGETS if found.name == name)
    assert isinstance(found, Target)
    return found
