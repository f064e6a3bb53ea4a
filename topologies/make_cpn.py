"""Makes the networks of the CPN framework's evaluation and their traces: `python topologies/make_cpn.py`.

Regions far apart and unequal: round trips of 10 to 250 ms, each direction's rate drawn from 20 to 500 Mbit/s again
every 60 to 180 s, computing power from 1 down to an eighth. All of it is seeded; each time the same files come out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from random import Random

from testbed.spec.graph import write_topology
from testbed.trace.csv import write_csv
from testbed.trace.generate import UniformRedraw

HERE = Path(__file__).parent

#: Network → each region's workers and their computing power, and the seed. The slowest region comes first: the first
#: member evaluates for all, and it has the time for that beside its steps.
NETWORKS = {
    "cpn-12": ([(3, 0.125), (3, 0.25), (3, 0.5), (3, 1.0)], 12),
    "cpn-24": ([(4, 0.125), (5, 0.25), (5, 0.5), (5, 0.75), (5, 1.0)], 24),
}
RATES_BPS = (20e6, 500e6)
REDRAWN_S = (60, 180)
RTT_MS = (10, 250)
DURATION_S = 1800


def make(name: str, regions: Sequence[tuple[int, float]], seed: int, traces: Path) -> Iterator[str]:
    """Yield the lines of a network's file, and write its traces on the way."""
    draw = Random(seed)
    names = [f"r{number}" for number in range(1, len(regions) + 1)]
    workers = sum(count for count, _ in regions)
    yield f"# {workers} workers in {len(regions)} regions, for hybrid synchronization: `python topologies/make_cpn.py`."
    yield "# Drawn once: round trips of 10 to 250 ms. Drawn again every 60 to 180 s: rates of 20 to 500 Mbit/s."
    yield f"name: {name}"
    yield "sites:"
    yield from (
        f"  {site}: {{workers: {count}, speed: {speed:g}}}" for site, (count, speed) in zip(names, regions, strict=True)
    )
    yield "lan: {rate: 1gbit, delay: 0.1ms}"
    yield "links:"
    for number, (a, b) in enumerate(combinations(names, 2)):
        yield f"  - between: [{a}, {b}]"
        yield f"    rtt: {draw.randint(*RTT_MS)}ms"
        for way, (side, source, target) in enumerate((("forward: ", a, b), ("backward:", b, a))):
            period_s = draw.randint(*REDRAWN_S)
            generator = UniformRedraw(
                *RATES_BPS,
                period_s=period_s,
                duration_s=DURATION_S // period_s * period_s,
                seed=100 * seed + 2 * number + way,
            )
            write_csv(traces / f"{source}-{target}.csv", generator.trace(), [str(generator)])
            yield f"    {side} {{trace: {{file: ../traces/{name}/{source}-{target}.csv}}}}"


if __name__ == "__main__":
    for name, (regions, seed) in NETWORKS.items():
        traces = HERE.parent / "traces" / name
        traces.mkdir(parents=True, exist_ok=True)
        write_topology(HERE / f"{name}.yaml", "".join(f"{line}\n" for line in make(name, regions, seed, traces)))
