"""Compare policies with each other and with the bound: nine containers on NetStorm's nine data centres.

    sudo python -m benchmarks.policies [--policies NAME] [--seeds 1,2] [--missing] [--network netstorm9-rtt]
    python -m benchmarks.policies --simulated

One network stays up, and its members never stop reducing. For each seed its 26 links get new rates, drawn as in
NetStorm's evaluation (uniform from 20 to 155 Mbit/s, times the scale). Routes follow by inverse rate, and queues have
room for TCP's bursts. One policy after the other is put in force live, so that all are measured on the same network and
ratios are paired. A round's time is whole: from the end of the previous round to its own end, the worker's step
included.

A row is a policy. Synchronous policies take the same steps and share one loss trajectory, so the ratio of their rounds
is that of the times to any loss. A star's server stands at the median of the nine places by the simulator (and at the
best and the worst). Beside each policy stand the bound, the simulator's seconds for the same plan, and NetStorm's
ablations: one root, no auxiliary routes, and without awareness, where the plan is that of the previous draw.

Figures are kept (`--out`), a seed and policy at a time; the tables show all that are kept for this scale and size. A
policy takes about MEASURED_S on a seed, slow stars longer. `--simulated` takes the simulator's seconds alone, on draws
of the same rates, without root, and keeps nothing. The exit code is 1 where a claim about emulated rounds is missed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.support.live import Live, members_on
from benchmarks.support.netstorm import (
    CLAIMS,
    NETWORKS,
    PARAMETERS,
    POLICIES,
    SCALE,
    SIMULATED,
    STARS,
    TOPOLOGIES,
    UNAWARE,
    drawn,
    options,
)
from benchmarks.support.networks import roomy
from benchmarks.support.options import Options
from benchmarks.support.paired import CONFIDENCE, Ratio, ratio
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from testbed.atomic_file import write_text
from testbed.emulation.network.routing import Routes
from testbed.planning import View, make_policy, predict, simulate
from testbed.planning.bound import bound
from testbed.run.view import declared_states, view_of
from testbed.spec.topology import Topology

OUT = Path("runs") / "policies.json"

#: The rounds of a policy on a seed: as many as take MEASURED_S, within these limits. Two is the least, since long and
#: short rounds alternate where early members begin to send.
MEASURED_S, FEWEST, MOST = 12.0, 2, 5

QUICK = ("packing", "netstorm", "star alexnet, median")


#: Claims: packing takes at most this many times the bound; each policy takes the simulator's seconds within this part.
NEAR_BOUND, NEAR_SIMULATED = 1.2, 0.15


@dataclass(frozen=True, slots=True)
class Measured:
    """A policy on a seed: the whole seconds of each round, and what was expected of the plan."""

    policy: str
    seed: int
    scale: float
    parameters: int
    seconds: tuple[float, ...]
    bound_s: float
    simulated_s: float
    predicted_s: float
    trees: int
    chunk_bytes: int
    auxiliary_part: float
    at: str
    network: str = NETWORKS[0]

    @property
    def mean_s(self) -> float:
        """The mean seconds of a round."""
        return mean(self.seconds)


def measure(live: Live, name: str, seed: int, topology: Topology) -> Measured:
    """Measure one policy on one seed's network."""
    if name == UNAWARE:
        live.become(roomy(drawn(topology, seed - 1)))
        live.force(*POLICIES[name])
    live.become(roomy(drawn(topology, seed)), tell=name != UNAWARE)
    view = live.view()
    if name != UNAWARE:
        live.force(*options(name, view))
    expected = simulate(live.plan, view, rounds=SIMULATED).seconds
    rounds = live.measure(min(MOST, max(FEWEST, ceil(MEASURED_S / expected))))
    return Measured(
        policy=name,
        seed=seed,
        scale=SCALE,
        parameters=PARAMETERS,
        seconds=rounds.seconds,
        bound_s=bound(view).seconds,
        simulated_s=simulate(rounds.plan, view, rounds=SIMULATED).seconds,
        predicted_s=predict(rounds.plan, view).seconds,
        trees=len(rounds.plan.trees),
        chunk_bytes=rounds.plan.chunk_bytes,
        auxiliary_part=rounds.auxiliary_part,
        at=time.strftime("%Y-%m-%d %H:%M:%S"),
        network=topology.name,
    )


def simulated(seed: int, topology: Topology, names: Sequence[str]) -> Iterator[Measured]:
    """Yield the figures of policies on one seed's network by the simulator alone."""
    seen, before = (_view(topology, each) for each in (seed, seed - 1))
    bound_s = bound(seen).seconds
    for name in names:
        policy, its = options(name, seen)
        plan = make_policy(policy, its).plan(before if name == UNAWARE else seen)
        seconds = simulate(plan, seen, rounds=SIMULATED).seconds
        yield Measured(
            policy=name,
            seed=seed,
            scale=SCALE,
            parameters=PARAMETERS,
            seconds=(seconds,),
            bound_s=bound_s,
            simulated_s=seconds,
            predicted_s=predict(plan, seen).seconds,
            trees=len(plan.trees),
            chunk_bytes=plan.chunk_bytes,
            auxiliary_part=0.0,
            at=time.strftime("%Y-%m-%d %H:%M:%S"),
            network=topology.name,
        )


def _view(topology: Topology, seed: int) -> View:
    """Return the network with one draw of the rates, as the emulator would know it."""
    network = drawn(topology, seed)
    return view_of(network, Routes.over(network), declared_states(network), 4 * PARAMETERS, 0.0, "oracle")


def load(file: Path) -> dict[tuple[str, str, int], Measured]:
    """Return what was measured so far at this scale and size, by network, policy and seed."""
    if not file.exists():
        return {}
    kept = (Measured(**{**value, "seconds": tuple(value["seconds"])}) for value in json.loads(file.read_text()))
    return {
        (one.network, one.policy, one.seed): one for one in kept if (one.scale, one.parameters) == (SCALE, PARAMETERS)
    }


def save(file: Path, kept: Mapping[tuple[str, str, int], Measured]) -> None:
    """Replace the file with all that is kept."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps([asdict(one) for one in kept.values()], indent=1))


def by_policy(kept: Mapping[tuple[str, str, int], Measured], network: str) -> dict[str, dict[int, Measured]]:
    """Return policy → seed → measurement on a network, in the benchmark's order."""
    return {
        name: seeds
        for name in (*POLICIES, *STARS)
        if (seeds := {seed: one for (on, policy, seed), one in sorted(kept.items()) if (on, policy) == (network, name)})
    }


def versus(found: Mapping[str, Mapping[int, Measured]], slow: str, fast: str) -> Ratio | None:
    """Return how many times as fast `fast` is as `slow`."""
    seconds = [{seed: one.mean_s for seed, one in found.get(name, {}).items()} for name in (slow, fast)]
    return ratio(*seconds)


def tables(found: Mapping[str, Mapping[int, Measured]], network: str, simulated: bool = False) -> list[Table]:
    """Return the table of policies and, for the network as published, that of the claims."""
    rows = [(name, *_row(list(seeds.values()))) for name, seeds in found.items()]
    columns = (
        *("policy", "seeds", "s a round", "× the bound", "simulated", "× simulated", "furthest", "auxiliary", "trees"),
    )
    title = f"{network} × {SCALE:g}, {PARAMETERS * 4 / 1e6:g} MB, {'simulated' if simulated else 'emulated'}"
    notes = (
        f"[…]: {CONFIDENCE:.0%} interval over seeds. simulated: the simulator's seconds, as a multiple of the bound.",
        "furthest: × simulated on the seed where that differs most from 1. auxiliary: the part of the bytes.",
    )
    figures = Table(title, columns, rows, notes)
    if network != NETWORKS[0]:
        return [figures]
    judged = [(*its, "yes" if held else "NO") for *its, held in claims(found, simulated)]
    return [figures, Table("Times as fast", ("policy : other", "measured", "claimed", "held"), judged)]


def claims(found: Mapping[str, Mapping[int, Measured]], simulated: bool = False) -> list[tuple[str, str, str, bool]]:
    """Return each claim with what is measured, what is claimed, and whether the claim is held.

    Simulated figures have no claim about how far they are from the simulator's.
    """
    judged = [
        (f"{claim.policy} : {claim.against}", str(times), f"≥ {claim.least:g}", times.value >= claim.least)
        for claim in CLAIMS
        if (times := versus(found, claim.against, claim.policy)) is not None
    ]
    if "packing" in found:
        packed = mean(one.mean_s / one.bound_s for one in found["packing"].values())
        judged.append(("time of packing : bound", f"{packed:.2f}", f"≤ {NEAR_BOUND:g}", packed <= NEAR_BOUND))
    off = {name: abs(mean(one.mean_s / one.simulated_s for one in seeds.values()) - 1) for name, seeds in found.items()}
    if off and not simulated:
        worst = max(off, key=off.__getitem__)
        name = f"difference from the simulator, the largest: {worst}"
        judged.append((name, f"{off[worst]:.0%}", f"≤ {NEAR_SIMULATED:.0%}", off[worst] <= NEAR_SIMULATED))
    return judged


def _row(ones: Sequence[Measured]) -> tuple[str, ...]:
    by_seed = {one.seed: one for one in ones}
    of_simulated = {seed: one.mean_s / one.simulated_s for seed, one in by_seed.items()}
    furthest = max(of_simulated, key=lambda seed: abs(of_simulated[seed] - 1))
    return (
        str(len(ones)),
        f"{mean(one.mean_s for one in ones):.2f}",
        _times(by_seed, lambda one: one.bound_s),
        f"{mean(one.simulated_s / one.bound_s for one in ones):.2f}",
        _times(by_seed, lambda one: one.simulated_s),
        f"{of_simulated[furthest]:.2f}",
        f"{mean(one.auxiliary_part for one in ones):.0%}",
        f"{mean(one.trees for one in ones):.0f} × {mean(one.chunk_bytes for one in ones) / 1024:.0f} KiB",
    )


def _times(seeds: Mapping[int, Measured], of: Callable[[Measured], float]) -> str:
    whole = {seed: one.mean_s for seed, one in seeds.items()}
    return str(ratio(whole, {seed: of(one) for seed, one in seeds.items()}))


def as_json(found: Mapping[str, Mapping[int, Measured]]) -> dict[str, Any]:
    """Return all measurements, with the ratios, for JSON."""
    ratios = {f"{claim.policy} : {claim.against}": versus(found, claim.against, claim.policy) for claim in CLAIMS}
    return {
        "repeats": max((len(seeds) for seeds in found.values()), default=0),
        "scale": SCALE,
        "model_bytes": 4 * PARAMETERS,
        "measured": {name: [asdict(one) for one in seeds.values()] for name, seeds in found.items()},
        "ratios": {name: asdict(times) for name, times in ratios.items() if times is not None},
    }


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is asked for, and print all that was measured so far. Returns 1 where a claim is missed, else 0."""
    parser = Options(__doc__)
    parser.add_draws((1, 2, 3, 4, 5), quick=1)
    parser.add_argument(
        "--network", default=NETWORKS[0], choices=NETWORKS, help="the network as published, or with round trips"
    )
    parser.add_argument(
        "--policies", action="append", choices=(*POLICIES, *STARS), help="this policy only; may be repeated"
    )
    parser.add_argument("--missing", action="store_true", help="measure only what is not kept yet")
    parser.add_argument("--show", action="store_true", help="print the kept figures, and measure nothing")
    parser.add_argument("--simulated", action="store_true", help="the simulator's seconds alone, without root")
    parser.add_argument("--out", type=Path, default=OUT, help="the file that keeps the figures (default %(default)s)")
    asked = parser.parse(words)
    names = asked.policies or (QUICK if asked.quick else (*POLICIES, *STARS))
    topology = Topology.load(TOPOLOGIES / f"{asked.network}.yaml")
    if asked.simulated:
        found: dict[str, dict[int, Measured]] = {name: {} for name in names}
        for seed in asked.seeds:
            progress(f"draw {seed}")
            for one in simulated(seed, topology, names):
                found[one.policy][seed] = one
        show(tables(found, asked.network, simulated=True), as_json(found), as_json=asked.json)
        return 0  # the claims are about emulated rounds
    kept = load(asked.out)
    wanted = [
        (name, seed)
        for seed in asked.seeds
        for name in names
        if not (asked.missing and (asked.network, name, seed) in kept)
    ]
    backend = None
    if wanted and not asked.show:
        with members_on(f"policies-{os.getpid()}", roomy(drawn(topology, asked.seeds[0]))) as live:
            backend = live.network.shaper.name
            for name, seed in wanted:
                one = kept[asked.network, name, seed] = measure(live, name, seed, topology)
                save(asked.out, kept)
                ratios = f"{one.mean_s / one.bound_s:.2f} of the bound, {one.mean_s / one.simulated_s:.2f} of simulated"
                progress(f"seed {seed}, {name}: {one.mean_s:.2f} s a round, {ratios}")
    found = by_policy(kept, asked.network)
    show(tables(found, asked.network), as_json(found), as_json=asked.json, backend=backend)
    return 0 if asked.network != NETWORKS[0] or all(held for *_, held in claims(found)) else 1


if __name__ == "__main__":
    run_program(main)
