"""All targets by name. A target is loaded when it is needed: its readers are instrumented then."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from tests.fuzz.target import Target

#: Targets, by the module that has them.
MODULES = {
    "files": ("csv", "mahimahi", "iperf3", "topology", "experiment", "sweep", "overrides"),
    "imports": ("gml", "graphml", "matrix", "pensieve", "cellular", "rtt-csv", "ping", "capture"),
    "messages": ("message", "plan"),
    "controllers": ("controller", "gossip-controller"),
    "peers": ("round", "gossip", "greeting", "probes", "request", "means", "state", "holdings"),
    "requests": ("owner", "access"),
}
NAMES = tuple(name for names in MODULES.values() for name in names)

#: The modules whose coverage guides a search, by the target's module: readers and their libraries. More modules would
#: take longer to instrument than a piece of a search.
GUIDES = {
    "files": ("testbed.spec", "testbed.trace", "testbed.report.trace", "yaml", "json", "csv"),
    "imports": ("testbed.spec", "testbed.trace", "csv", "networkx.readwrite"),
    "messages": ("testbed.plan", "testbed.protocol", "testbed.schema", "testbed.sync.allreduce"),
    "controllers": ("testbed.controller", "testbed.plan", "testbed.protocol", "testbed.planning.view"),
    "peers": ("testbed.sync", "testbed.schema"),
    "requests": ("testbed.emulation", "testbed.spec", "testbed.link", "testbed.api"),
}


def module_of(name: str) -> str:
    """Return the module of a target."""
    return next(module for module, names in MODULES.items() if name in names)


@cache
def target(name: str) -> Target:
    """Return the target of a name."""
    found = import_module(f"tests.fuzz.{module_of(name)}").TARGETS
    return cast("Target", next(each for each in found if each.name == name))
