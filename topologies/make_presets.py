"""Makes the networks taken from published data: `python topologies/make_presets.py DATA`.

DATA is a folder with `graphs/gaia.gml`, `graphs/amazon_us.gml` and `graphs/geantdistance.gml` (of the code of
"Throughput-Optimal Topology Design for Cross-Silo Federated Learning", NeurIPS 2020) and
`rtt/ibm-cloud-regions-2024-08-25.csv` (IBM Cloud's latency table: a row and a column for each region, ms). Without
DATA only netstorm9 and its traces are made, which need none. Each time the same files come out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from testbed.spec.graph import Defaults, import_graph, read_graph, topology_text, write_topology
from testbed.spec.graph.links import links_of
from testbed.spec.graph.site_graph import named
from testbed.trace.csv import write_csv
from testbed.trace.generate import UniformRedraw

HERE = Path(__file__).parent

#: The rate where a source has none: ours, of the order that one flow between regions gets.
RATE_BPS = 100e6
#: The same for GÉANT, whose map has 100 Mbit/s to 10 Gbit/s for two of three links.
GEANT_RATE_BPS = 1e9

SILOS = 'the code of "Throughput-Optimal Topology Design for Cross-Silo Federated Learning", NeurIPS 2020.'
FORMULA = "Delays: 0.0085 ms a kilometre and 4 ms, one way (docs/topology.md)."

#: Graph → (file of the preset, rate of links without capacity in bit/s, comments).
GRAPHS = {
    "gaia": (
        "gaia-11",
        RATE_BPS,
        [
            "Eleven Amazon EC2 regions, each joined to each: the sites of Gaia (NSDI 2017).",
            "Sites, distances and capacities: gaia.gml of",
            SILOS,
            FORMULA,
        ],
    ),
    "amazon_us": (
        "aws-na-22",
        RATE_BPS,
        [
            "Twenty-two Amazon Web Services sites in North America, each joined to each.",
            "Sites and distances: amazon_us.gml of",
            SILOS,
            f"{FORMULA} Rates: ours, the source has none.",
        ],
    ),
    "geantdistance": (
        "geant-40",
        GEANT_RATE_BPS,
        [
            "GÉANT, the European research network, in March 2012: a site for each country, named by its code.",
            "Sites, distances and capacities: Topology Zoo's map Geant2012, as geantdistance.gml of",
            SILOS,
            FORMULA,
            "Rates: 22 links have no capacity there and 1 Gbit/s here.",
        ],
    ),
}

IBM = [
    "Ten IBM Cloud regions, each joined to each.",
    "Round trips: the mean of both directions in IBM Cloud's published inter-region latency table,",
    "means of 27 July to 25 August 2024. Rates: ours, the table has none.",
]

#: The overlay of NetStorm's evaluation (arXiv 2404.11352).
NETSTORM_LINKS = "1-2 1-3 2-3 2-5 3-4 4-5 4-6 5-7 6-7 6-8 6-9 7-8 8-9"
NETSTORM = "Nine data centres and 13 pairs of links: the network of NetStorm's evaluation (arXiv 2404.11352)."

#: Variant → comments.
NETSTORM_VARIANTS = {
    "netstorm9": [
        "As published, each direction has a rate drawn uniformly from 20 to 155 Mbit/s again every 180 s, and there is",
        "no delay, jitter or loss. Ours: the seeds (traces/netstorm9, ten draws each, then again), the LAN's 0.1 ms,",
        "and routes by inverse rate (of the first draw), which favours schemes that send where they have no link to.",
    ],
    "netstorm9-static": ["Each direction keeps the rate of its first draw; see netstorm9.yaml."],
    "netstorm9-rtt": [
        "Rates as in netstorm9.yaml. Ours: a delay of each pair, drawn once from 5 to 60 ms one way, and 0.01 % loss.",
    ],
}
NETSTORM_DELAY_MS = (5, 60)
NETSTORM_SEED = 9


def make_graphs(data: Path, folder: Path) -> None:
    """Write the presets that are graphs."""
    for source, (name, rate_bps, comments) in GRAPHS.items():
        graph = data / "graphs" / f"{source}.gml"
        import_graph(graph, folder / f"{name}.yaml", Defaults(rate_bps), comments=comments)


def make_ibm_cloud(data: Path, folder: Path) -> None:
    """Write the preset that is a table of round trips."""
    file = data / "rtt/ibm-cloud-regions-2024-08-25.csv"
    graph = read_graph(file)
    graph = replace(graph, nodes={name: replace(node, label=_spaced(name)) for name, node in graph.nodes.items()})
    names, _ = named(graph)
    links, _ = links_of(graph, file, Defaults(RATE_BPS))
    write_topology(folder / "ibm-cloud-10.yaml", topology_text("ibm-cloud-10", graph, names, links, 1, IBM))


def _spaced(name: str) -> str:
    """`SaoPaulo` → `Sao Paulo`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)


def make_netstorm(folder: Path, traces: Path) -> None:
    """Write the presets whose links have drawn rates, with their traces."""
    traces.mkdir(parents=True, exist_ok=True)
    pairs = [tuple(f"dc{end}" for end in link.split("-")) for link in NETSTORM_LINKS.split()]
    first: dict[str, float] = {}
    for seed, (a, b) in enumerate(((a, b) for pair in pairs for a, b in (pair, pair[::-1])), 1):
        generator = UniformRedraw(20e6, 155e6, period_s=180, duration_s=1800, seed=seed)
        trace = generator.trace()
        write_csv(traces / f"{a}-{b}.csv", trace, [str(generator)])
        first[f"{a}-{b}"] = trace.rows[0].rate_bps or 0.0
    for variant, comments in NETSTORM_VARIANTS.items():
        lines = _netstorm(variant, [NETSTORM, *comments], pairs, first)
        write_topology(folder / f"{variant}.yaml", "".join(f"{line}\n" for line in lines))


def _netstorm(
    variant: str, comments: list[str], pairs: list[tuple[str, ...]], first: dict[str, float]
) -> Iterator[str]:
    draw = Random(NETSTORM_SEED)
    yield from (f"# {comment}" for comment in comments)
    yield f"name: {variant}"
    yield "sites:"
    yield from (f"  dc{number}: {{workers: 1}}" for number in range(1, 10))
    yield "routing: inverse-rate"
    yield "links:"
    for a, b in pairs:
        yield f"  - between: [{a}, {b}]"
        yield f"    delay: {draw.randint(*NETSTORM_DELAY_MS)}ms" if variant == "netstorm9-rtt" else "    delay: 0ms"
        if variant == "netstorm9-rtt":
            yield "    loss: 0.01%"
        for side, name in (("forward: ", f"{a}-{b}"), ("backward:", f"{b}-{a}")):
            trace = f"trace: {{file: ../traces/netstorm9/{name}.csv}}"
            rate = f"rate: {first[name] / 1e6:.3f}mbit"
            yield f"    {side} {{{rate if variant == 'netstorm9-static' else trace}}}"


if __name__ == "__main__":
    make_netstorm(HERE, HERE.parent / "traces/netstorm9")
    for data in map(Path, sys.argv[1:2]):
        make_graphs(data, HERE)
        make_ibm_cloud(data, HERE)
