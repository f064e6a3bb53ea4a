"""Staggered groups: as the cpn policy plans them for the declared network, periods and phases with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from testbed.planning import make_policy
from testbed.planning.graphs import Graph
from testbed.schemes.assignment import GossipAssignment, Setting
from testbed.schemes.staggered import StaggeredOptions


def assign(options: StaggeredOptions, setting: Setting) -> GossipAssignment:
    """PolicyError when the policy has no plan."""
    groups = rules_of(options, setting)
    first = setting.view.names[0]
    home = next(team for team in groups["teams"] if first in team["members"])
    return GossipAssignment(
        protocol="staggered",
        graph=graph_of(groups),
        rules=groups,
        steps=groups["steps"],
        evaluators={first: (home["period"], home["phase"])},
        groups=groups,
    )


def rules_of(options: StaggeredOptions, setting: Setting) -> dict[str, Any]:
    """What StaggeredRules are made of."""
    policy = make_policy("cpn", setting.policy_options)
    plan = policy.plan(setting.view)
    return {
        "teams": [
            {
                "members": group["members"],
                "owners": group["leaders"],
                "period": group["period"],
                "phase": group["phase"],
            }
            for group in policy.explain(setting.view, plan)["groups"]
        ],
        "steps": dict(plan.steps),
        "staleness": options.staleness or None,
        "normalise": options.normalise,
        "prox": options.prox,
        "outer": asdict(options.outer),
        "codec": setting.codec,
    }


def graph_of(rules: Mapping[str, Any]) -> Graph:
    """Which member sends to which under such rules: a group's members to its owners, all owners to the holders of the
    global model, which are every group's first owner; and back."""
    teams = rules["teams"]
    roots = [team["owners"][0] for team in teams]
    pairs = {(member, owner) for team in teams for owner in team["owners"] for member in (*team["members"], *roots)}
    return Graph.undirected(tuple(rules["steps"]), [(one, other) for one, other in pairs if one != other])
