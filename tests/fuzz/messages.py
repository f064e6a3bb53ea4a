"""Input that comes in one piece from another program: a line of the control protocol, a plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from testbed.plan import Plan, Route
from testbed.protocol import (
    CommitGraph,
    ControlMessage,
    Hello,
    Holding,
    Job,
    MeanSlice,
    NodeConfiguration,
    PeerSample,
    Reconfigure,
    Report,
    Train,
    Welcome,
    decode,
    encode,
)
from testbed.sync.allreduce.held_plans import HeldPlans
from testbed.sync.allreduce.role import route_table
from tests.fuzz.target import Feed, Target
from tests.sync.plans import chain, names, star

ROSTER = {"a": ("10.0.0.2", 4000), "b": ("10.0.0.3", 4000)}
PLACE = NodeConfiguration("hop", ("b",), ("b",), {"a": 0.5, "b": 0.5}, ("b",), {"max_ig": 4})
MESSAGES: Mapping[str, ControlMessage] = {
    "hello": Hello("a", ROSTER["a"], token="secret"),
    "welcome": Welcome(
        Job(9, options={"every": 8}), ROSTER, {"epoch": 1, "trees": [{"keys": [0.5]}]}, {"b": "0f" * 32}, 5.0, "b"
    ),
    "report": Report(
        *("a", 3, 1, 1.5, 2.5, 0.1, 0.2, 10, 20, 0, 1),
        waited={"b": 0.25},
        peers=(PeerSample("b", 1000, 0.5, 0.04, 2),),
        metrics={"loss": 0.5},
        slices=(MeanSlice(0, 9, ("a", "b"), 2.0),),
        arrivals={"b": (Train(1.5, 0.01, 65536),)},
    ),
    "reconfigure": Reconfigure({"epoch": 4}, ROSTER, (Holding("a", 4, 7, False, 9, ((0, 4),)),)),
    "commit": CommitGraph(5, PLACE, ROSTER),
}

MEMBERS = names(4)
FIRST = Plan(1, MEMBERS, (star(MEMBERS, "m0"),))
HALVES = (replace(star(MEMBERS, "m0"), share=0.5), replace(chain(MEMBERS), share=0.5, keys=(0.25, 0.75)))
PLANS = {
    "plain": Plan(2, MEMBERS, HALVES, steps={"m1": 2}),
    "routes": Plan(3, MEMBERS, FIRST.trees, auxiliary=(Route("m1", "m2", ("m3",)),), link_codecs={"m1->m0": "int8"}),
    "groups": Plan(
        2,
        MEMBERS,
        FIRST.trees,
        groups=tuple(Plan(0, its, (star(its, its[0]),)).whole for its in (MEMBERS[:2], MEMBERS[2:])),
        period=2,
    ),
}
ELEMENTS = 1000


def use_message(data: bytes) -> None:
    """Decode a line as its receiver does."""
    message = decode(data)
    assert decode(encode(message)) == message


def use_plan(data: bytes) -> None:
    """Read a plan as from its file, and as a member that the controller asks to hold it."""
    with suppress(ValueError, RecursionError):  # no JSON: what reads plans' files says so
        _hold(Plan.from_json(json.loads(data)))
    with suppress(UnicodeDecodeError):
        _hold(Plan.from_json(decode(b'{"kind":"prepare","plan":%s}' % data).plan))


def _hold(plan: Plan) -> None:
    assert Plan.from_json(json.loads(plan.dumps())) == plan
    for member in MEMBERS:
        held = HeldPlans(member, FIRST)
        held.keep(plan)
        held.hold(plan.epoch)
        for among_all in (True, *(() if not plan.groups else (False,))):
            held.layout(plan.epoch, among_all, ELEMENTS, 4)
        route_table(plan, member)
        plan.next_hops(member)
    cuts = [part.start for part in plan.whole.slices(ELEMENTS)] + [plan.whole.slices(ELEMENTS)[-1].stop]
    assert cuts == sorted(cuts) and (cuts[0], cuts[-1]) == (0, ELEMENTS)


def without_setup(use: Callable[[bytes], None]) -> Callable[[Path], AbstractContextManager[Feed]]:
    """Return a target's `open` for a use that needs no setup."""

    @contextmanager
    def opened(_: Path) -> Iterator[Feed]:
        yield use

    return opened


TARGETS = (
    Target("message", without_setup(use_message), {name: encode(message) for name, message in MESSAGES.items()}),
    Target("plan", without_setup(use_plan), {name: plan.dumps().encode() for name, plan in PLANS.items()}),
)
