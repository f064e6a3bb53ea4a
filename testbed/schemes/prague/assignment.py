"""Prague's members: groups are drawn among all, by a generator that lives with the first of them."""

from __future__ import annotations

from testbed.planning.graphs import make_graph
from testbed.schemes.assignment import GossipAssignment, Setting
from testbed.schemes.options import Misfit
from testbed.schemes.prague import PragueOptions


def assign(options: PragueOptions, setting: Setting) -> GossipAssignment:
    """Misfit when a group is larger than all members together."""
    members = setting.view.names
    if options.group > len(members):
        raise Misfit("group", f"{options.group}, where there are {len(members)} workers", f"{len(members)} at most")
    rules = {"generator": members[0]}
    return GossipAssignment(protocol="prague", graph=make_graph("complete", members), rules=rules)
