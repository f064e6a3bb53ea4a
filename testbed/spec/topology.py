"""Topology files: sites, the links between them, and the traces that the links replay."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

import networkx as nx
from pydantic import BeforeValidator, Field, model_validator

from testbed.link import GilbertElliott, LinkState, Queue, link_name
from testbed.resources import preset_or_file
from testbed.spec.errors import Fault, SpecError
from testbed.spec.load import Pair, Source, Strict, misfit, read_kind, validate
from testbed.spec.units import BurstyLoss, CardRate, Delay, Duration, QueueLimit, Rate, Size, Step
from testbed.trace.read import TraceFile, read_trace
from testbed.trace.trace import End, Trace, TraceError

Routing = Literal["delay", "hops", "inverse-rate"]
SwitchName = Literal["openvswitch", "openvswitch-user", "bridge"]
SwitchChoice = Literal["auto", SwitchName]

#: Linux cuts no interface name: it refuses one longer than this. A router's interface bears its peer site's name.
MAX_INTERFACE_NAME = 15
SITE_NAME = re.compile(r"[a-z][a-z0-9-]*")
#: Names of a router's own interfaces (its bridge, the loopback, the ports of its workers), names that Linux gives no
#: interface, and those of workers, whose access links would be named like this site's.
RESERVED = re.compile(r"lan|lo|w\d+|all|default|.*-w\d+")

#: Of a network's name.
MAX_NAME = 31

#: A site's LAN is a /24 less network, broadcast and router.
MAX_WORKERS = 253
#: Every pair of sites has its route: of so many in a row they take 33 MB and eight seconds.
MAX_SITES = 1000
#: What maps have room for.
MAX_LABEL = 100

#: A factor on rates outside this is a slip of the pen.
MIN_SCALE, MAX_SCALE = 1e-3, 1e3


def _site_name(name: object) -> str:
    if not isinstance(name, str) or not SITE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a site's name | small letters, digits and dashes, a letter first")
    if len(name) > MAX_INTERFACE_NAME:
        raise ValueError(
            f"the name {name!r} has {len(name)} characters, too long for an interface | at most {MAX_INTERFACE_NAME}"
        )
    if RESERVED.fullmatch(name):
        raise ValueError(f"the name {name!r} is taken by an interface or a worker | another name")
    return name


SiteName = Annotated[str, BeforeValidator(_site_name)]


#: Reads a file, to be replayed to this end, by this step (see `read_trace`).
ReadTrace = Callable[[Path, End, float | None], TraceFile]


class TraceRef(Strict):
    """A link's trace: a file, relative to the topology's folder, and how it is replayed.

    `loop: true` is short for `end: loop`, `loop: false` for `end: hold`. `step` is for formats that are resampled.
    """

    file: str
    loop: bool | None = None
    end: End | None = None
    offset: Duration = 0.0
    step: Step | None = None
    scale: float = Field(default=1.0, ge=MIN_SCALE, le=MAX_SCALE)

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        if self.loop is not None and self.end is not None:
            raise ValueError("has both `loop` and `end` | `end: loop`, `end: hold` or `end: stop`, without `loop`")
        return self

    def read(self, folder: Path, read: ReadTrace = read_trace) -> Trace:
        """The trace as it is replayed; `read` reads its file. TraceError names the file and what is wrong in it."""
        end: End = self.end or ("hold" if self.loop is False else "loop")
        trace = read(folder / self.file, end, self.step).trace
        try:
            return trace.scaled(self.scale).begun(self.offset)
        except TraceError as error:
            raise error.located(folder / self.file, file=folder / self.file) from None


class LinkProperties(Strict):
    """One direction of a link as written; None where the entry leaves it out."""

    rate: Rate | None = None
    delay: Delay | None = None
    rtt: Delay | None = None
    jitter: Delay | None = None
    reorder: bool | None = None
    loss: BurstyLoss | None = None
    queue: QueueLimit | None = None
    trace: TraceRef | None = None

    @model_validator(mode="after")
    def _one_delay(self) -> Self:
        if self.delay is not None and self.rtt is not None:
            raise ValueError("has both `delay` and `rtt` | `delay` (one way) or `rtt` (both ways), not both")
        return self

    def over(self, common: LinkProperties) -> LinkProperties:
        """This direction's own values where given, else the entry's common ones."""
        given = {name: getattr(self, name) for name in LinkProperties.model_fields if getattr(self, name) is not None}
        base = {name: getattr(common, name) for name in LinkProperties.model_fields}
        if "delay" in given or "rtt" in given:
            base |= {"delay": None, "rtt": None}
        return LinkProperties.model_construct(**(base | given))


class LinkEntry(LinkProperties):
    """A physical pair of links; `forward` is from the first site named to the second."""

    between: Pair[SiteName]
    forward: LinkProperties = LinkProperties()
    backward: LinkProperties = LinkProperties()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        a, b = self.between
        if a == b:
            raise ValueError(f"joins {a} to itself | two different sites")
        for side, own in (("forward", self.forward), ("backward", self.backward)):
            properties = own.over(self)
            if properties.rate is None and properties.trace is None:
                raise ValueError(f"has no rate {side} | `rate: 50mbit`, for both ways or under `{side}`")
            if properties.delay is None and properties.rtt is None:
                raise ValueError(f"has no delay {side} | `delay: 20ms` (one way) or `rtt: 40ms`")
        return self


#: Latitude and longitude in degrees, as a list of two.
Position = Annotated[
    tuple[Annotated[float, Field(ge=-90, le=90)], Annotated[float, Field(ge=-180, le=180)]], Field(strict=False)
]


class Site(Strict):
    """A data centre. `speed` is a factor on the experiment's declared compute; limits are per worker.

    `label` and `position` are for maps: what the site is called in print, and where it is.
    """

    workers: int = Field(ge=0, le=MAX_WORKERS)
    speed: float = Field(default=1.0, ge=1e-3, le=1e3)
    cpus: float | None = Field(default=None, ge=0.01, le=1024)
    gpus: int = Field(default=0, ge=0)
    memory: Size | None = None
    label: str | None = Field(default=None, min_length=1, max_length=MAX_LABEL)
    position: Position | None = None


class Lan(Strict):
    """Between a worker and its router, each way."""

    rate: CardRate = 1e9
    delay: Delay = 0.1e-3


class TopologyFile(Strict):
    """The file as written."""

    name: str = Field(pattern=rf"^[a-z0-9][a-z0-9-]{{0,{MAX_NAME - 1}}}$")
    sites: dict[SiteName, Site]
    links: list[LinkEntry] = Field(default_factory=list)
    lan: Lan = Lan()
    routing: Routing = "delay"
    switch: SwitchChoice = "auto"

    @model_validator(mode="after")
    def _a_network(self) -> Self:
        if not self.sites or len(self.sites) > MAX_SITES:
            raise misfit("sites", f"there are {len(self.sites)}", f"1 to {MAX_SITES} sites")
        graph = nx.Graph()
        graph.add_nodes_from(self.sites)
        for number, entry in enumerate(self.links):
            a, b = entry.between
            field = f"links.{number}.between"
            for site in (a, b):
                if site not in self.sites:
                    raise misfit(field, f"unknown site {site!r}", f"one of {', '.join(self.sites)}")
            if graph.has_edge(a, b):
                raise misfit(field, f"{a} and {b} are joined twice", "one entry for each pair of sites")
            graph.add_edge(a, b)
        if not any(site.workers for site in self.sites.values()):
            raise misfit("sites", "no site has workers", "`workers: 1` or more in at least one site")
        if not nx.is_connected(graph):
            islands = sorted(sorted(part) for part in nx.connected_components(graph))
            parts = " and ".join("{" + ", ".join(part) + "}" for part in islands[:3])
            raise misfit("links", f"the network is not connected: no link joins {parts}", "a link between them")
        return self


@dataclass(frozen=True, slots=True)
class Link:
    """A directed WAN link: its configured state, and the trace that moves it, if any."""

    source: str
    target: str
    state: LinkState
    trace: Trace | None = None

    @property
    def name(self) -> str:
        return link_name(self.source, self.target)

    def at(self, time_s: float) -> LinkState:
        """The state in force `time_s` seconds after the replay began."""
        if self.trace is None:
            return self.state
        row = self.trace.at(time_s)
        return replace(self.state, up=False) if row is None else row.over(self.state)


@dataclass(frozen=True, slots=True)
class Worker:
    """A training process in its own container. `speed` is relative to the declared step time."""

    name: str
    site: str
    speed: float
    cpus: float | None
    gpus: int
    memory: int | None


@dataclass(frozen=True)
class Topology:
    """A validated network: sites, directed links by name, and what the LANs are like."""

    name: str
    sites: Mapping[str, Site]
    links: Mapping[str, Link]
    lan: Lan
    routing: Routing
    file: Path
    trace_files: tuple[Path, ...] = ()
    switch: SwitchChoice = "auto"

    @classmethod
    def load(cls, file: Path) -> Topology:
        """Return the topology in a file, or in the preset of that name (`netstorm9`) where no such file exists.

        Raises:
            SpecError: The file, or a trace that it names, is wrong.
        """
        file = preset_or_file("topology", file)
        return cls.from_value(read_kind(file, "a topology"), file)

    @classmethod
    def from_value(cls, value: Mapping[str, object], file: Path) -> Topology:
        """The topology in a parsed file; trace paths are relative to the folder of `file`."""
        parsed = validate(TopologyFile, value, file)
        links: dict[str, Link] = {}
        faults: list[Fault] = []
        read = cache(read_trace)  # many links may have the same file
        for number, entry in enumerate(parsed.links):
            a, b = entry.between
            for source, target, own in ((a, b, entry.forward), (b, a, entry.backward)):
                try:
                    link = _link(source, target, own.over(entry), file.parent, read)
                    links[link.name] = link
                except TraceError as error:
                    remedy = "a trace as docs/traces.md describes, its path relative to this file"
                    faults.append(Fault(f"links.{number}.trace", str(error), remedy))
        if faults:
            raise SpecError(file, Source.of(file).located(faults))
        traces = {
            own.trace.file for entry in parsed.links for own in (entry, entry.forward, entry.backward) if own.trace
        }
        files = tuple(file.parent / name for name in sorted(traces))
        return cls(parsed.name, parsed.sites, links, parsed.lan, parsed.routing, file, files, parsed.switch)

    @cached_property
    def workers(self) -> tuple[Worker, ...]:
        """All workers, site by site: `paris-w0`, `paris-w1`, …"""
        return tuple(
            Worker(f"{name}-w{i}", name, site.speed, site.cpus, site.gpus, int(site.memory) if site.memory else None)
            for name, site in self.sites.items()
            for i in range(site.workers)
        )

    def with_worker(self, site: str) -> Topology:
        """The same network with one worker more at a site, the next in number. KeyError where there is no such site,
        ValueError where its LAN has no address left."""
        if site not in self.sites:
            raise KeyError(f"no site {site} is there; there are {', '.join(self.sites)}")
        count = self.sites[site].workers + 1
        if count > MAX_WORKERS:
            raise ValueError(f"{site} has {MAX_WORKERS} workers, as many as its LAN has addresses; write another site")
        return replace(self, sites={**self.sites, site: self.sites[site].model_copy(update={"workers": count})})

    def last_worker(self, site: str) -> Worker:
        """The one of a site that has the highest number. IndexError where the site has none."""
        return [worker for worker in self.workers if worker.site == site][-1]

    def scaled(self, factor: float) -> Topology:
        """The same network with every WAN rate multiplied; LANs, delays and losses stay.

        TraceError when a trace's rate would be none that a link can have.
        """
        links = {
            name: replace(link, state=link.state.scaled(factor), trace=link.trace and link.trace.scaled(factor))
            for name, link in self.links.items()
        }
        return replace(self, links=links)


def _link(source: str, target: str, properties: LinkProperties, folder: Path, read: ReadTrace) -> Link:
    trace = None
    if ref := properties.trace:
        trace = ref.read(folder, read)
    rate = properties.rate
    if rate is None:
        first = trace.at(0.0) if trace else None
        rate = first.rate_bps if first else None
        if rate is None:
            raise TraceError(f"{source}->{target}: neither the link nor its trace's first row has a rate")
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
