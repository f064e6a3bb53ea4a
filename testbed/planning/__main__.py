"""Compiles the simulator, so that no run waits for it: `python -m testbed.planning`. That takes half a minute, once."""

from __future__ import annotations

from testbed.plan import Plan, Route, Tree
from testbed.planning.simulate import simulate
from testbed.planning.view import Edge, Member, View

NAMES = ("a", "b", "c")


def main() -> None:
    """Simulate a small plan; what was compiled is kept beside the source."""
    members = tuple(Member(name, name, 1.0, "", "") for name in NAMES)
    edges = {(u, v): Edge(1e6, 0.01) for u in NAMES for v in NAMES if u != v}
    ways = {"b": "a", "c": "a"}
    plan = Plan(0, NAMES, (Tree("a", ways, ways),), auxiliary=(Route("a", "c", ("b",)),))
    simulate(plan, View(members, {}, {}, edges, 100_000), rounds=2)


if __name__ == "__main__":
    main()
