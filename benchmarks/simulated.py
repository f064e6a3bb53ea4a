"""Compare every policy of `benchmarks.policies` on NetStorm's network in the chunk simulator alone.

    python -m benchmarks.simulated [--seeds 1,2,3]

Draws, rates, size and rounds are those of `benchmarks.policies`. Nothing is emulated, so a draw takes a few seconds. A
row is a policy: its multiple of the bound, and how many times as fast it is as a star as MXNet runs it, at the median
of the nine places. A plan that takes exactly the bound stands beside the policies. Stars are shown at all nine places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

from benchmarks.support.netstorm import (
    CLAIMS,
    KEYS,
    PARAMETERS,
    POLICIES,
    SCALE,
    SIMULATED,
    TOPOLOGY,
    UNAWARE,
    drawn,
    served,
)
from benchmarks.support.options import Options
from benchmarks.support.paired import CONFIDENCE, Ratio, ratio
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from testbed.emulation.network.routing import Routes
from testbed.planning import View, make_policy, simulate
from testbed.planning.bound import bound
from testbed.run.view import declared_states, view_of
from testbed.spec.topology import Topology

#: The stars that others are compared with: pulls do not overlap the pushes of their key.
MXNET = ("alexnet", "one")

#: A plan that takes exactly the bound.
BOUND = "at the bound"


@dataclass(frozen=True, slots=True)
class Draw:
    """One draw of the rates: the bound, the seconds of a round by policy, and by a star's keys at all nine places."""

    seed: int
    bound_s: float
    seconds: Mapping[str, float]
    stars: Mapping[str, Sequence[float]]

    def of(self, name: str) -> float:
        """Return a round's seconds: of a policy, at the bound, or of a star at its median place, `star one, median`."""
        if name == BOUND:
            return self.bound_s
        if name in self.seconds:
            return self.seconds[name]
        return median(self.stars[name.removeprefix("star ").removesuffix(", median")])


def view(seed: int, topology: Topology) -> View:
    """Return the network with one draw of the rates, as the emulator would know it."""
    network = drawn(topology, seed)
    return view_of(network, Routes.over(network), declared_states(network), 4 * PARAMETERS, 0.0, "oracle")


def draw(seed: int, topology: Topology) -> Draw:
    """Simulate everything on one draw."""
    seen = view(seed, topology)
    seconds = {}
    for name, (policy, options) in POLICIES.items():
        known = view(seed - 1, topology) if name == UNAWARE else seen
        seconds[name] = simulate(make_policy(policy, options).plan(known), seen, rounds=SIMULATED).seconds
    stars = {keys: sorted(served(keys, seen).values()) for keys in KEYS}
    return Draw(seed, bound(seen).seconds, seconds, stars)


def times(draws: Sequence[Draw], slow: str, fast: str) -> Ratio:
    """Return how many times as fast `fast` is as `slow`."""
    return _ratio(draws, lambda one: one.of(slow), lambda one: one.of(fast))


def _ratio(draws: Sequence[Draw], above: Callable[[Draw], float], below: Callable[[Draw], float]) -> Ratio:
    found = ratio({one.seed: above(one) for one in draws}, {one.seed: below(one) for one in draws})
    assert found is not None  # there is a draw
    return found


def tables(draws: Sequence[Draw]) -> list[Table]:
    """Return the tables of policies, of stars by place, and of the claims on the emulation."""
    against = [f"star {keys}, median" for keys in MXNET]
    rows = [
        (name, str(times(draws, name, BOUND)), *(str(times(draws, star, name)) for star in against))
        for name in (BOUND, *POLICIES)
    ]
    notes = (f"Geometric means over {len(draws)} draws, [{CONFIDENCE:.0%} intervals].",)
    title = f"Nine data centres × {SCALE:g}, {PARAMETERS * 4 / 1e6:g} MB, simulated: multiples of the bound"
    claims = [
        (f"{claim.policy} : {claim.against}", str(times(draws, claim.against, claim.policy)), f"≥ {claim.least:g}")
        for claim in CLAIMS
    ]
    return [
        Table(title, ("", "of the bound", *(f"× {star}" for star in against)), rows, notes),
        _places(draws),
        Table("Times as fast", ("", "simulated", "claimed"), claims),
    ]


def _places(draws: Sequence[Draw]) -> Table:
    """Return the table of stars by the server's place."""
    rows = []
    for keys in KEYS:
        multiples = [[seconds / one.bound_s for seconds in one.stars[keys]] for one in draws]
        ranks = [f"{mean(rank):.2f}" for rank in zip(*multiples, strict=True)]
        rows.append((keys, *ranks, f"{mean(mean(places) for places in multiples):.2f}"))
    columns = ("keys", *(str(rank) for rank in range(1, 10)), "mean")
    return Table("Stars by place, from the best to the worst: multiples of the bound, means over draws", columns, rows)


def as_json(draws: Sequence[Draw]) -> dict[str, Any]:
    """Return all draws, with the ratios, for JSON."""
    return {
        "repeats": len(draws),
        "scale": SCALE,
        "model_bytes": 4 * PARAMETERS,
        "draws": [asdict(one) for one in draws],
        "of_bound": {name: asdict(times(draws, name, BOUND)) for name in POLICIES},
        "ratios": {
            f"{fast} : {slow}": asdict(times(draws, slow, fast))
            for fast, slow in (
                *((claim.policy, claim.against) for claim in CLAIMS),
                *((BOUND, f"star {keys}, median") for keys in MXNET),
            )
        },
    }


def main(words: Sequence[str] | None = None) -> None:
    """Simulate and print."""
    parser = Options(__doc__)
    parser.add_draws((1, 2, 3, 4, 5), quick=2)
    asked = parser.parse(words)
    topology = Topology.load(TOPOLOGY)
    draws = []
    for seed in asked.seeds:
        progress(f"draw {seed}")
        draws.append(draw(seed, topology))
    show(tables(draws), as_json(draws), as_json=asked.json)


if __name__ == "__main__":
    run_program(main)
