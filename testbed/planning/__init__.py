"""From a view of the network to a plan: views, policies, the cost model and the bound. Pure, without I/O.

`bound` itself is imported from its module, whose name it shares.
"""

# Importing a policy's module enters it into the registry.
from testbed.planning.bound import Bound, BoundError
from testbed.planning.cost import Cost, CostModel, predict
from testbed.planning.policies import (
    auto,
    blueconnect,
    cpn,
    given,
    hierarchical,
    hips,
    mlnet,
    mst,
    netstorm,
    packing,
    ring,
    star,
    tsengine,
)
from testbed.planning.policy import Policy, PolicyError, make_policy, policy_names
from testbed.planning.simulate import Simulated, SimulationError, simulate
from testbed.planning.view import Edge, Member, Pair, PhysicalLink, View, ViewError

__all__ = [
    "Bound",
    "BoundError",
    "Cost",
    "CostModel",
    "Edge",
    "Member",
    "Pair",
    "PhysicalLink",
    "Policy",
    "PolicyError",
    "Simulated",
    "SimulationError",
    "View",
    "ViewError",
    "auto",
    "blueconnect",
    "cpn",
    "given",
    "hierarchical",
    "hips",
    "make_policy",
    "mlnet",
    "mst",
    "netstorm",
    "packing",
    "policy_names",
    "predict",
    "ring",
    "simulate",
    "star",
    "tsengine",
]
