"""Topology files, written from a graph's sites and links."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from testbed.atomic_file import write_text
from testbed.spec.errors import Fault, SpecError
from testbed.spec.graph.links import GraphLink
from testbed.spec.graph.site_graph import GraphNode, SiteGraph
from testbed.spec.load import MOST_BYTES, parse_yaml
from testbed.spec.topology import MAX_LABEL, Topology

#: Words that YAML reads as they stand, with the exception of these.
PLAIN = re.compile(r"[a-z][a-z0-9-]*")
NO_WORDS = ("no", "off", "on", "yes", "null", "true", "false", "y", "n")


def write_topology(target: Path, text: str, source: Path | None = None) -> Topology:
    """Write the text of a topology file, and return its topology.

    Raises:
        SpecError: The text is no topology file, or too long for one (then `source` is named, if it is given). Nothing
            is written.
    """
    if len(text.encode()) > MOST_BYTES:
        rule = f"the graph makes a topology file of over {MOST_BYTES / 2**20:g} MiB, which no verb reads"
        remedy = "fewer nodes or edges; in a matrix, empty cells where no link is wanted"
        raise SpecError(source or target, [Fault("edges", rule, remedy)])
    made = Topology.from_value(parse_yaml(text), target)
    write_text(target, text)
    return made


def topology_text(
    name: str,
    graph: SiteGraph,
    names: Mapping[str, str],
    links: Sequence[GraphLink],
    workers: int,
    comments: Sequence[str],
) -> str:
    """Return a topology file of these links, with `workers` at each site; `names` maps nodes to their sites' names."""
    return "".join(f"{line}\n" for line in _lines(name, graph, names, links, workers, comments))


def _lines(
    name: str,
    graph: SiteGraph,
    names: Mapping[str, str],
    links: Sequence[GraphLink],
    workers: int,
    comments: Sequence[str],
) -> Iterator[str]:
    yield from (f"# {comment}" for comment in comments)
    yield f"name: {_word(name)}"
    yield "sites:"
    for node in dict.fromkeys(end for link in links for end in (link.a, link.b)):
        yield f"  {_word(names[node])}: {{workers: {workers}{_place(graph.nodes[node])}}}"
    yield "links:"
    for link in links:
        ends = f"{_word(names[link.a])}, {_word(names[link.b])}"
        more = f", jitter: {link.jitter_ms:.6g}ms" if link.jitter_ms else ""
        more += f", loss: {link.loss * 100:.6g}%" if link.loss else ""
        yield f"  - {{between: [{ends}], rate: {link.rate_bps / 1e6:g}mbit, delay: {link.delay_ms:.6g}ms{more}}}"


def _place(node: GraphNode) -> str:
    """Return the YAML of a site's label and map position, in degrees: six decimals are a tenth of a metre."""
    label = f", label: {_quoted(node.label[:MAX_LABEL])}" if node.label else ""
    if node.position is None:
        return label
    latitude, longitude = (f"{degrees:.6f}".rstrip("0").rstrip(".") for degrees in node.position)
    return f"{label}, position: [{latitude}, {longitude}]"


def _word(name: str) -> str:
    """Return a name that YAML reads back as it is: `no` is Norway, not false, and `007` is no number."""
    return name if PLAIN.fullmatch(name) and name not in NO_WORDS else _quoted(name)


def _quoted(text: str) -> str:
    return str(yaml.safe_dump(text, default_style='"', allow_unicode=True, width=float("inf"))).strip()
