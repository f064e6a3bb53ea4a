"""Names of sites from the labels of nodes: at most 15 characters of a few kinds, each name once."""

from __future__ import annotations

import re
import unicodedata
from itertools import count

from testbed.spec.graph.site_graph import SiteGraph, some
from testbed.spec.topology import MAX_INTERFACE_NAME, MAX_NAME, RESERVED


def site_name(label: str) -> str:
    """Return a node's label as a site's name: up to its first comma, in small ASCII letters and dashes, at most 15.

    `Miami, Florida` → `miami`, `San José` → `san-jose`, `1` → `site-1`, `London Docklands` → `london-dockland`.
    """
    plain = unicodedata.normalize("NFKD", label.partition(",")[0]).encode("ascii", "ignore").decode()
    name = _fitted(re.sub(r"[^a-z0-9]+", "-", plain.lower()))
    if not name or not name[0].isalpha() or RESERVED.fullmatch(name):
        name = _fitted(f"site-{name}")
    return name


def network_name(stem: str) -> str:
    """Return a file's name as a network's name: `Poland` → `poland`, `my_net` → `my-net`."""
    plain = unicodedata.normalize("NFKD", stem).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")[:MAX_NAME].strip("-") or "network"


def named(graph: SiteGraph) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return node → its site's name, and a note for each name that several labels become.

    The first of these nodes gets the name, the others get it with a number: Rocketfuel's `Santa+Clara,+CA389` and
    `Santa+Clara,+CA444` are `santa-clara` and `santa-clara-2`. The number skips names that other labels become.
    """
    wanted: dict[str, list[str]] = {}
    for node in graph.nodes:
        wanted.setdefault(site_name(graph.called(node)), []).append(node)
    names = {nodes[0]: name for name, nodes in wanted.items()}
    taken = set(wanted)
    notes = []
    for name, nodes in wanted.items():
        numbers = count(2)
        for node in nodes[1:]:
            names[node] = next(free for number in numbers if (free := _numbered(name, number)) not in taken)
            taken.add(names[node])
        if len(nodes) > 1:
            sites = some([f"{graph.called(node)!r} is {names[node]}" for node in nodes])
            notes.append(f"{len(nodes)} labels become the same name: {sites}.")
    return {node: names[node] for node in graph.nodes}, tuple(notes)


def _numbered(name: str, number: int) -> str:
    ending = f"-{number}"
    return name[: MAX_INTERFACE_NAME - len(ending)].rstrip("-") + ending


def _fitted(name: str) -> str:
    """Return a name cut to the length of an interface's, and unlike a worker's: `paris-w0` → `parisw0`."""
    return re.sub(r"-(w\d+)$", r"\1", name.strip("-")[:MAX_INTERFACE_NAME].strip("-"))
