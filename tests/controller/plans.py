"""A network with two ways, for judging plans."""

from __future__ import annotations

from testbed.plan import Plan, Tree
from testbed.planning import View
from tests.planning.networks import sites, view_of


def triangle(direct: float) -> tuple[View, Plan, Plan]:
    """Two sites joined at `direct` Mbit/s and over a third at 40; the plan of the link between them, and the other."""
    view = view_of(sites(("a", "b", direct), ("a", "c", 40), ("c", "b", 40)), {}, 4_000_000, "measured")
    short, around = {"a-w0": "b-w0", "c-w0": "b-w0"}, {"a-w0": "c-w0", "c-w0": "b-w0"}
    plans = [Plan(0, view.names, (Tree("b-w0", ways, ways),)) for ways in (short, around)]
    return view, plans[0], plans[1]
