"""Topology files, written."""

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

#: What YAML takes for a word as it stands, but for these.
PLAIN = re.compile(r"[a-z][a-z0-9-]*")
NO_WORDS = ("no", "off", "on", "yes", "null", "true", "false", "y", "n")


def write_topology(target: Path, text: str, source: Path | None = None) -> Topology:
    """Write the text of a topology file if it is one. SpecError otherwise, which names the source, if there is one,
    where it is too large for such a file; then nothing is written."""
    if len(text.encode()) > MOST_BYTES:
        rule = f"makes a topology file of over {MOST_BYTES / 2**20:g} MiB, which would not be read"
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
    """A topology file of these links, with as many workers at each site; `names` are the sites' names by node."""
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
    """What maps show of a site: six digits behind the point are a tenth of a metre."""
    label = f", label: {_quoted(node.label[:MAX_LABEL])}" if node.label else ""
    if node.position is None:
        return label
    latitude, longitude = (f"{degrees:.6f}".rstrip("0").rstrip(".") for degrees in node.position)
    return f"{label}, position: [{latitude}, {longitude}]"


def _word(name: str) -> str:
    """As YAML reads it back: `no` is Norway, not false, and `007` no number."""
    return name if PLAIN.fullmatch(name) and name not in NO_WORDS else _quoted(name)


def _quoted(text: str) -> str:
    return str(yaml.safe_dump(text, default_style='"', allow_unicode=True, width=float("inf"))).strip()
