"""Planning: from a view of the network to a plan, with the predicted time of a round and its lower bound. Pure, no I/O.

    view = View.of_network(members, links, routes, model_bytes)
    plan = make_policy("packing").plan(view)
    predict(plan, view).seconds          # by the cost model
    simulate(plan, view).seconds         # chunk by chunk

The function `bound` is imported from `testbed.planning.bound`: its name is also that of the module.
"""

from testbed.planning import policies  # noqa: F401 - importing the policies registers them
from testbed.planning.bound import Bound, BoundError
from testbed.planning.cost import CostModel, predict
from testbed.planning.policy import Policy, PolicyError, make_policy, named_policies, policy_names
from testbed.planning.simulate import SimulationError, simulate
from testbed.planning.view import Edge, Member, Pair, PhysicalLink, View, ViewError

__all__ = [
    "Bound",
    "BoundError",
    "CostModel",
    "Edge",
    "Member",
    "Pair",
    "PhysicalLink",
    "Policy",
    "PolicyError",
    "SimulationError",
    "View",
    "ViewError",
    "make_policy",
    "named_policies",
    "policy_names",
    "predict",
    "simulate",
]
