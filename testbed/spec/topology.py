"""Topology files: sites, the links between them, and the traces that the links replay."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import networkx as nx
from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from testbed.link import (
    GilbertElliott,
    LinkState,
    NoSuchLink,
    Queue,
    find_link,
    link_ends,
    link_name,
    written_link,
)
from testbed.resources import preset_or_file
from testbed.spec.errors import Fault, SpecError
from testbed.spec.load import Source, read_kind
from testbed.spec.model import LINK_SCHEMA, Pair, Strict, misfit, validate
from testbed.spec.traffic import ReadTrace, TraceRef, TrafficEntry
from testbed.spec.units import BurstyLoss, CardRate, Delay, Memory, QueueLimit, Rate
from testbed.trace.read import read_trace
from testbed.trace.trace import Trace, TraceError
from testbed.trace.traffic import MOST_ROWS, Traffic, left_by

Routing = Literal["delay", "hops", "inverse-rate"]
SwitchName = Literal["openvswitch", "openvswitch-user", "bridge"]
SwitchChoice = Literal["auto", SwitchName]

#: The longest name of an interface that Linux takes. A router's interface bears the name of the site at its other end.
MAX_INTERFACE_NAME = 15
SITE_NAME = re.compile(r"[a-z][a-z0-9-]*")
#: Names that no site may have: names of a router's own interfaces (its bridge, the loopback, the ports of its workers),
#: names that Linux allows no interface, and names of workers, whose access links would be named like the site's links.
RESERVED = re.compile(r"lan|lo|w\d+|all|default|.*-w\d+")

#: The longest name of a network.
MAX_NAME = 31

#: A site's LAN is a /24, without the addresses of the network, the broadcast and the router.
MAX_WORKERS = 253
#: Every pair of sites has a route: the routes of 1,000 sites in a row take 33 MB and eight seconds.
MAX_SITES = 1000
#: The remedy for a trace that can't be read or replayed.
TRACE_REMEDY = "a trace as docs/traces.md describes, its path relative to this file"
#: The longest label that maps have room for.
MAX_LABEL = 100


def _site_name(name: object) -> str:
    if not isinstance(name, str) or not SITE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a site's name | small letters, digits and dashes, a letter first")
    if len(name) > MAX_INTERFACE_NAME:
        rule = f"the name {name!r} has {len(name)} characters, too many for an interface"
        raise ValueError(f"{rule} | at most {MAX_INTERFACE_NAME} characters")
    if RESERVED.fullmatch(name):
        raise ValueError(f"the name {name!r} is reserved for an interface or a worker | another name")
    return name


SiteName = Annotated[str, BeforeValidator(_site_name)]


class LinkProperties(Strict):
    """The properties of one direction of a link. A direction takes omitted properties from its link's entry."""

    rate: Rate | None = None
    """The link's rate, such as `50mbit`, counting whole Ethernet frames; by default the first rate of `trace`."""
    delay: Delay | None = None
    """The one-way delay, such as `20ms`."""
    rtt: Delay | None = None
    """The round-trip delay, instead of `delay`: each direction has half."""
    jitter: Delay | None = None
    """The most by which a packet's delay differs from `delay`, up or down, uniformly; 0 by default."""
    reorder: bool | None = None
    """True if packets may overtake each other under `jitter`; false by default."""
    loss: BurstyLoss | None = None
    """The share of lost packets, 0% by default: at random, `0.1%`, or in bursts, `{p: 1%, r: 30%}`."""
    queue: QueueLimit | None = None
    """The queue's limit, 1bdp by default; or a mapping with `limit` and `discipline`: droptail, codel or red."""
    trace: TraceRef | None = None
    """A trace that changes the link's properties over time."""

    @model_validator(mode="after")
    def _one_delay(self) -> Self:
        if self.delay is not None and self.rtt is not None:
            rule = "the link has both `delay` and `rtt`"
            raise ValueError(f"{rule} | `delay` (one way) or `rtt` (both ways), not both")
        return self

    def over(self, common: LinkProperties) -> LinkProperties:
        """Return this direction's own values, and for omitted ones those in `common`, the entry's."""
        given = {name: getattr(self, name) for name in LinkProperties.model_fields if getattr(self, name) is not None}
        base = {name: getattr(common, name) for name in LinkProperties.model_fields}
        if "delay" in given or "rtt" in given:
            base |= {"delay": None, "rtt": None}
        return LinkProperties.model_construct(**(base | given))


class LinkEntry(LinkProperties):
    """A physical pair of links. Its properties hold for both directions, unless a direction has its own."""

    between: Annotated[Pair[SiteName], WithJsonSchema(LINK_SCHEMA)]
    """The two sites, as [paris, tokyo], `paris->tokyo` or `paris-tokyo`."""
    forward: LinkProperties = LinkProperties()
    """The properties of the direction from the first site to the second, where they differ from the entry's."""
    backward: LinkProperties = LinkProperties()
    """The properties of the direction from the second site to the first, where they differ from the entry's."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        a, b = self.between
        if a == b:
            raise ValueError(f"the link joins {a} to itself | two different sites")
        for side, own in (("forward", self.forward), ("backward", self.backward)):
            properties = own.over(self)
            if properties.rate is None and properties.trace is None:
                raise ValueError(f"the link has no rate {side} | `rate: 50mbit`, for both ways or under `{side}`")
            if properties.delay is None and properties.rtt is None:
                raise ValueError(f"the link has no delay {side} | `delay: 20ms` (one way) or `rtt: 40ms`")
        return self


#: Latitude and longitude in degrees, as a list of two.
Position = Annotated[
    tuple[Annotated[float, Field(ge=-90, le=90)], Annotated[float, Field(ge=-180, le=180)]], Field(strict=False)
]


class Site(Strict):
    """A data centre: a LAN with workers and a router."""

    workers: int = Field(ge=0, le=MAX_WORKERS)
    """The number of the site's workers."""
    speed: float = Field(default=1.0, ge=1e-3, le=1e3)
    """The workers' relative speed: at 0.5 a step takes twice the experiment's `compute.step_time`."""
    cpus: float | None = Field(default=None, ge=0.01, le=1024)
    """The CPUs that each worker may use; no limit by default."""
    gpus: int = Field(default=0, ge=0)
    """The number of each worker's GPUs."""
    memory: Memory | None = None
    """The memory that each worker may use, such as `512MB`; by default an equal share of what the host has left."""
    label: str | None = Field(default=None, min_length=1, max_length=MAX_LABEL)
    """The site's name on maps; by default its name in this file."""
    position: Position | None = None
    """The site's place on maps: latitude and longitude in degrees."""


class Lan(Strict):
    """The links between workers and their routers, in each direction."""

    rate: CardRate = 1e9
    """The rate of each worker's link, such as `1gbit`."""
    delay: Delay = 0.1e-3
    """The one-way delay of each worker's link, such as `0.1ms`."""


class TopologyFile(Strict):
    """A topology file as it is written."""

    name: str = Field(pattern=rf"^[a-z0-9][a-z0-9-]{{0,{MAX_NAME - 1}}}$")
    """The network's name."""
    sites: dict[SiteName, Site]
    """Name → site."""
    links: list[LinkEntry] = Field(default_factory=list)
    """The physical pairs of links between sites."""
    traffic: list[TrafficEntry] = Field(default_factory=list)
    """Background traffic on links. Training gets the part of a link's rate that this traffic leaves."""
    lan: Lan = Lan()
    """The LANs of all sites."""
    routing: Routing = "delay"
    """The cost that routes minimize: the sum of the delays and a millisecond for each link, the number of
    hops, or the sum of the inverse rates."""
    switch: SwitchChoice = "auto"
    """The switch of each site's LAN; auto takes Open vSwitch where the kernel has it, else a Linux bridge."""

    @model_validator(mode="before")
    @classmethod
    def _ends_of_links(cls, value: Any) -> Any:
        """Return the file's value, with link names such as `paris->tokyo` under `between` split into the two sites."""
        links = value.get("links") if isinstance(value, Mapping) else None
        if not isinstance(links, list):
            return value
        sites = value.get("sites")
        ends = [_ends(entry, f"links.{number}.between", sites) for number, entry in enumerate(links)]
        return {**value, "links": ends}

    @model_validator(mode="after")
    def _a_network(self) -> Self:
        if not self.sites or len(self.sites) > MAX_SITES:
            raise misfit("sites", f"the file has {len(self.sites)} sites", f"1 to {MAX_SITES} sites")
        graph = nx.Graph()
        graph.add_nodes_from(self.sites)
        for number, entry in enumerate(self.links):
            a, b = entry.between
            field = f"links.{number}.between"
            for site in (a, b):
                if site not in self.sites:
                    raise misfit(field, f"the file has no site {site!r}", f"one of {', '.join(self.sites)}")
            if graph.has_edge(a, b):
                raise misfit(field, f"{a} and {b} have two entries", "one entry for each pair of sites")
            graph.add_edge(a, b)
        if not any(site.workers for site in self.sites.values()):
            raise misfit("sites", "no site has workers", "`workers: 1` or more in at least one site")
        if not nx.is_connected(graph):
            islands = sorted(sorted(part) for part in nx.connected_components(graph))
            parts = " and ".join("{" + ", ".join(part) + "}" for part in islands[:3])
            raise misfit("links", f"no link joins {parts}, so the network is not connected", "a link between the parts")
        self.traffic_by_link()
        return self

    def directions(self) -> Iterator[tuple[tuple[str, str], LinkProperties]]:
        """Yield the two sites and the properties of each directed link."""
        for entry in self.links:
            yield entry.between, entry.forward.over(entry)
            yield entry.between[::-1], entry.backward.over(entry)

    def traffic_by_link(self) -> dict[str, dict[int, TrafficEntry]]:
        """Return, for each directed link with traffic, its entries by their indices in the file."""
        known = [link_name(*ends) for ends, _ in self.directions()]
        found: dict[str, dict[int, TrafficEntry]] = {}
        for number, entry in enumerate(self.traffic):
            try:
                links = known if entry.link is None else [find_link(entry.link, known)]
            except NoSuchLink as error:
                rule, _, remedy = str(error).partition("; write ")
                raise misfit(f"traffic.{number}.link", rule, remedy) from None
            for link in links:
                found.setdefault(link, {})[number] = entry
        return found


def _ends(entry: Any, field: str, sites: Any) -> Any:
    if not isinstance(entry, Mapping) or not isinstance(written := entry.get("between"), str):
        return entry
    try:
        name = written_link(written)
    except ValueError as error:
        raise misfit(field, *str(error).split(" | ")) from None
    if "->" in name:
        return {**entry, "between": list(link_ends(name))}
    known, words = sites if isinstance(sites, Mapping) else {}, name.split("-")
    pairs = [("-".join(words[:at]), "-".join(words[at:])) for at in range(len(words) - 1, 0, -1)]
    found = [(a, b) for a, b in pairs if a in known and b in known]
    if len(found) != 1:
        several = " or ".join(link_name(*pair) for pair in found)
        rule = f"{name} may be {several}" if found else f"no two sites of the file make {name}"
        raise misfit(field, rule, "the two sites, [a, b]")
    return {**entry, "between": list(found[0])}


@dataclass(frozen=True, slots=True)
class Link:
    """A directed WAN link."""

    source: str
    target: str
    #: The link's state in the file, before any trace.
    state: LinkState
    #: The trace that the link replays, or None. With background traffic, its rates are what the traffic leaves.
    trace: Trace | None = None
    #: The background traffic on the link.
    traffic: tuple[TrafficEntry, ...] = ()

    @property
    def name(self) -> str:
        """The link's name, `paris->tokyo`."""
        return link_name(self.source, self.target)

    @property
    def most_jitter_s(self) -> float:
        """The most jitter in seconds that the link has in its file or in a row of its trace."""
        rows = self.trace.rows if self.trace is not None else ()
        return max(self.state.jitter_s, max((row.jitter_s or 0.0 for row in rows), default=0.0))

    def traffic_record(self) -> list[dict[str, Any]]:
        """Return the background traffic as plain values: seconds, bytes, and rates as `bps` or `share` of the link."""
        return [entry.model_dump(mode="json", exclude_none=True, exclude={"link"}) for entry in self.traffic]

    def at(self, time_s: float) -> LinkState:
        """Return the state in force `time_s` seconds after the replay began."""
        if self.trace is None:
            return self.state
        row = self.trace.at(time_s)
        return replace(self.state, up=False) if row is None else row.over(self.state)


@dataclass(frozen=True, slots=True)
class Worker:
    """A training process in its own container."""

    name: str
    site: str
    #: A factor on the declared compute: at 0.5 a step takes twice the declared time.
    speed: float
    cpus: float | None
    gpus: int
    memory: int | None


@dataclass(frozen=True)
class Topology:
    """A network as its topology file describes it, validated."""

    name: str
    sites: Mapping[str, Site]
    #: Directed links by name.
    links: Mapping[str, Link]
    lan: Lan
    routing: Routing
    file: Path
    trace_files: tuple[Path, ...] = ()
    switch: SwitchChoice = "auto"

    @classmethod
    def load(cls, file: Path, seed: int = 1) -> Topology:
        """Return the topology in a file, or in the preset of that name (`netstorm9`) if there is no such file.

        The background traffic is drawn from `seed`. SpecError: the file, or a trace named in it, is wrong.
        """
        file = preset_or_file("topology", file)
        return cls.from_value(read_kind(file, "a topology"), file, seed)

    @classmethod
    def from_value(cls, value: Mapping[str, object], file: Path, seed: int = 1) -> Topology:
        """Return the topology of a file's value; the paths of its traces are relative to the folder of `file`.

        SpecError: the value, or a trace named in it, is wrong.
        """
        parsed = validate(TopologyFile, value, file)
        links: dict[str, Link] = {}
        faults: list[Fault] = []
        read = cache(read_trace)  # many links may have the same file
        for number, entry in enumerate(parsed.links):
            a, b = entry.between
            for source, target, side, own in ((a, b, "forward", entry.forward), (b, a, "backward", entry.backward)):
                try:
                    link = _link(source, target, own.over(entry), file.parent, read)
                    links[link.name] = link
                except TraceError as error:
                    field = f"links.{number}.trace" if own.trace is None else f"links.{number}.{side}.trace"
                    faults.append(Fault(field, str(error), TRACE_REMEDY))
        recorded: dict[int, Trace] = {}
        for number, traffic in enumerate(parsed.traffic):
            try:
                if traffic.trace is not None:
                    recorded[number] = traffic.trace.read(file.parent, read)
            except TraceError as error:
                faults.append(Fault(f"traffic.{number}.trace", str(error), TRACE_REMEDY))
        if faults:
            raise SpecError(file, Source(file).located(dict.fromkeys(faults)))  # both directions may have one
        rows = MOST_ROWS
        for name, entries in parsed.traffic_by_link().items():
            try:
                links[name] = loaded = _loaded(links[name], entries, recorded, seed, rows)
            except TraceError as error:
                rule, _, remedy = str(error).partition("; write ")
                fault = Fault(error.field or "traffic", f"on {name}: {rule}", remedy)
                raise SpecError(file, Source(file).located([fault])) from None
            rows -= len(loaded.trace.rows) if loaded.trace else 0
        references = (*(own.trace for _, own in parsed.directions()), *(each.trace for each in parsed.traffic))
        traces = {reference.file for reference in references if reference}
        files = tuple(file.parent / name for name in sorted(traces))
        return cls(parsed.name, parsed.sites, links, parsed.lan, parsed.routing, file, files, parsed.switch)

    @cached_property
    def workers(self) -> tuple[Worker, ...]:
        """All workers, site by site: `paris-w0`, `paris-w1` and so on."""
        return tuple(
            Worker(f"{name}-w{i}", name, site.speed, site.cpus, site.gpus, int(site.memory) if site.memory else None)
            for name, site in self.sites.items()
            for i in range(site.workers)
        )

    def with_worker(self, site: str) -> Topology:
        """Return the network with one more worker at `site`, which has the next number.

        Raises:
            KeyError: The network has no such site.
            ValueError: The site's LAN has no address left.
        """
        if site not in self.sites:
            raise KeyError(f"{self.name} has no site {site}; write one of {', '.join(self.sites)}")
        count = self.sites[site].workers + 1
        if count > MAX_WORKERS:
            raise ValueError(f"{site} has {MAX_WORKERS} workers and no address is left in its LAN; name another site")
        return replace(self, sites={**self.sites, site: self.sites[site].model_copy(update={"workers": count})})

    def last_worker(self, site: str) -> Worker:
        """Return the site's worker with the highest number. IndexError: the site has no workers."""
        return [worker for worker in self.workers if worker.site == site][-1]

    def scaled(self, factor: float) -> Topology:
        """Return the network with every WAN rate multiplied by `factor`; LANs, delays and losses stay.

        TraceError: a scaled rate in a trace is out of a link's range.
        """
        links = {
            name: replace(link, state=link.state.scaled(factor), trace=link.trace and link.trace.scaled(factor))
            for name, link in self.links.items()
        }
        return replace(self, links=links)


def _link(source: str, target: str, properties: LinkProperties, folder: Path, read: ReadTrace) -> Link:
    trace = properties.trace.read(folder, read) if properties.trace else None
    rate = properties.rate
    if rate is None:
        first = trace.at(0.0) if trace else None
        rate = first.rate_bps if first else None
        if rate is None:
            text = f"{source}->{target} has no rate, and the first row of its trace has none; write `rate: 50mbit`"
            raise TraceError(text, link=f"{source}->{target}")
    delay = properties.delay if properties.delay is not None else (properties.rtt or 0.0) / 2
    loss = properties.loss or 0.0
    bursts = loss if isinstance(loss, GilbertElliott) else None
    state = LinkState(
        rate_bps=rate,
        delay_s=delay,
        jitter_s=properties.jitter or 0.0,
        loss=loss.mean if isinstance(loss, GilbertElliott) else loss,
        queue=properties.queue or Queue(),
        bursts=bursts,
        reorder=properties.reorder or False,
    )
    return Link(source, target, state, trace)


def _loaded(
    link: Link, entries: Mapping[int, TrafficEntry], recorded: Mapping[int, Trace], seed: int, most_rows: int
) -> Link:
    """Return the link with a trace of the rates that its background traffic leaves.

    The keys of `entries` and `recorded` are the entries' indices in the file.

    TraceError: an entry, which the error names, does not fit the link, or the trace would have too many rows.
    """
    capacity_bps = link.state.rate_bps
    traffic: list[tuple[Traffic, random.Random]] = []
    for number, entry in entries.items():
        try:
            kind = entry.on(capacity_bps, recorded.get(number))
        except TraceError as error:
            error.field = f"traffic.{number}.{entry.kind}"
            raise
        traffic.append((kind, random.Random(f"{seed} {link.name} {number}")))
    return replace(link, trace=left_by(traffic, capacity_bps, link.trace, most_rows), traffic=tuple(entries.values()))
