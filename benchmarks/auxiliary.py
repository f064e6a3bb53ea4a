"""Measure what auxiliary routes gain when a primary hop is throttled, before any new plan follows.

    sudo python -m benchmarks.auxiliary [--seeds 1,2,3]

The network is NetStorm's nine data centres with the rates of `benchmarks.policies`. Links have the queues of
topologies/netstorm9.yaml, without the room for TCP's bursts that `benchmarks.policies` gives them. NetStorm's plan is
measured with its auxiliary routes and without them, over the same trees. On each seed one link falls to a tenth of its
rate while members keep their plan, and recovers afterwards. This link is the one whose fall, by the simulator, makes a
round without auxiliary routes the longest.

A row is a seed: seconds of a round before and after the fall, with auxiliary routes and without, and the part of the
bytes that went over auxiliary routes. A seed takes three and a half minutes. The exit code is 1 where a claim
is missed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Any

from benchmarks.support.live import Live, members_on
from benchmarks.support.netstorm import PARAMETERS, SCALE, TOPOLOGY, drawn
from benchmarks.support.options import Options
from benchmarks.support.paired import Ratio, ratio
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from testbed.plan import Plan
from testbed.planning import View, make_policy, simulate
from testbed.spec.event import LinkChange
from testbed.spec.topology import Topology

#: The part of its rate that the throttled link keeps.
LEFT = 0.1

#: Measured rounds of each plan. Two is the least, since long and short rounds alternate where early members begin to
#: send. A round over the throttled link takes 25 s without auxiliary routes.
ROUNDS = 2

#: Claims: the least part of the bytes on auxiliary routes, and how many times as fast rounds are with them.
PART, TIMES = 0.05, 1.3


@dataclass(frozen=True, slots=True)
class Throttled:
    """The mean seconds of a seed's rounds, with auxiliary routes and without, before and after the link fell."""

    seed: int
    link: str
    before_s: float
    after_s: float
    before_without_s: float
    after_without_s: float
    part_before: float
    part_after: float
    #: The simulator's seconds of a round after the fall.
    simulated_s: float
    simulated_without_s: float


def throttled(view: View, link: str) -> View:
    """Return the view with one link throttled. The overlay's edges stay, since routers do not see rates."""
    state = view.links[link]
    links = {**view.links, link: replace(state, rate_bps=state.rate_bps * LEFT)}
    bare = replace(view, links=links, edges={})
    return replace(bare, edges=bare.edges_of_links())


def worst_link(plan: Plan, view: View) -> str:
    """Return the WAN link whose throttling makes a round longest."""
    access = {name for member in view.members for name in (member.uplink, member.downlink)}
    wan = [name for name in view.links if name not in access]
    return max(wan, key=lambda name: simulate(plan, throttled(view, name)).seconds)


def at_rate(link: str, rate_bps: float) -> LinkChange:
    """Return the change of a link to a rate."""
    return LinkChange.model_validate({"link": link, "rate": f"{rate_bps:.0f}bit"})


def measure(live: Live, seed: int, topology: Topology) -> Throttled:
    """Measure both plans on one seed's network."""
    live.become(drawn(topology, seed))
    view = live.view()
    plain = make_policy("netstorm", {"auxiliary": False}).plan(view)
    link = worst_link(plain, view)
    whole_bps = view.links[link].rate_bps
    seconds: dict[tuple[bool, bool], float] = {}
    parts: dict[tuple[bool, bool], float] = {}
    simulated: dict[bool, float] = {}
    for auxiliary in (True, False):
        live.force("netstorm", {"auxiliary": auxiliary})
        for fallen in (False, True):
            if fallen:
                live.network.links_in_force.change(at_rate(link, LEFT * whole_bps))
                simulated[auxiliary] = simulate(live.plan, throttled(view, link), rounds=ROUNDS).seconds
            rounds = live.measure(ROUNDS)
            seconds[auxiliary, fallen], parts[auxiliary, fallen] = mean(rounds.seconds), rounds.auxiliary_part
        live.network.links_in_force.change(at_rate(link, whole_bps))
    return Throttled(
        seed=seed,
        link=link,
        before_s=seconds[True, False],
        after_s=seconds[True, True],
        before_without_s=seconds[False, False],
        after_without_s=seconds[False, True],
        part_before=parts[True, False],
        part_after=parts[True, True],
        simulated_s=simulated[True],
        simulated_without_s=simulated[False],
    )


def recovered(found: Sequence[Throttled]) -> Ratio | None:
    """Return how many times as fast rounds over a throttled hop are with auxiliary routes."""
    return ratio({one.seed: one.after_without_s for one in found}, {one.seed: one.after_s for one in found})


def held(found: Sequence[Throttled]) -> bool:
    """Return whether both claims hold."""
    times = recovered(found)
    return times is not None and times.value >= TIMES and min(one.part_after for one in found) >= PART


def table(found: Sequence[Throttled]) -> Table:
    """Return the table with a row a seed."""
    rows = [
        (
            f"{one.seed}, {one.link}",
            f"{one.before_s:.2f}",
            f"{one.before_without_s:.2f}",
            f"{one.after_s:.2f}",
            f"{one.after_without_s:.2f}",
            f"{one.after_without_s / one.after_s:.2f}",
            f"{one.simulated_without_s / one.simulated_s:.2f}",
            f"{one.part_before:.0%}",
            f"{one.part_after:.0%}",
        )
        for one in found
    ]
    columns = (
        "seed, link",
        "s before",
        "without",
        "s after",
        "without",
        "× as fast",
        "simulated",
        "auxiliary before",
        "after",
    )
    least = min(one.part_after for one in found)
    notes = (
        f"× as fast: with auxiliary routes after the fall; over all seeds {recovered(found)} (claimed ≥ {TIMES:g})",
        f"auxiliary: the part of the bytes on auxiliary routes; the least is {least:.0%} (claimed ≥ {PART:.0%})",
    )
    return Table(f"A link at {LEFT:.0%} of its rate, under the same plan", columns, rows, notes)


def as_json(found: Sequence[Throttled]) -> Mapping[str, Any]:
    """Return the figures for JSON."""
    times = recovered(found)
    return {
        "repeats": len(found),
        "scale": SCALE,
        "model_bytes": 4 * PARAMETERS,
        "recovered": asdict(times) if times else None,
        "auxiliary_part": min(one.part_after for one in found),
        "seeds": [asdict(one) for one in found],
    }


def main(words: Sequence[str] | None = None) -> int:
    """Measure the seeds and print them. Returns 1 where a claim is missed, else 0."""
    parser = Options(__doc__)
    parser.add_draws((1, 2, 3), quick=1)
    asked = parser.parse(words)
    topology = Topology.load(TOPOLOGY)
    found = []
    with members_on(f"auxiliary-{os.getpid()}", drawn(topology, asked.seeds[0])) as live:
        for seed in asked.seeds:
            found.append(measure(live, seed, topology))
            progress(f"seed {seed}: {found[-1]}")
        backend = live.network.shaper.name
    show([table(found)], as_json(found), as_json=asked.json, backend=backend)
    return 0 if held(found) else 1


if __name__ == "__main__":
    run_program(main)
