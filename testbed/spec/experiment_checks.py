"""The rules between an experiment's parts: its events, its networks, its strategy and its hosts must fit together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from testbed.schemes import SCHEMES, is_file
from testbed.schemes.options import Misfit
from testbed.spec.errors import Fault
from testbed.spec.event import Event
from testbed.spec.topology import Topology
from testbed.trace.trace import LEAST_RATE_BPS, MOST_RATE_BPS

if TYPE_CHECKING:
    from testbed.spec.experiment import ExperimentFile

#: The rates that a link may have, in words.
RATES = f"from {LEAST_RATE_BPS:g} to {MOST_RATE_BPS:g} bit/s"
#: The rule that fields for built-in models break where `train` has a command.
OWN_TRAINING = "the field is for training of a built-in model, and `train` has a command"


def check_parts(
    spec: ExperimentFile, topology: Topology, networks: Mapping[str, Topology], shortened: int | None
) -> list[Fault]:
    """Return a fault for each part of an experiment that does not fit the others.

    Args:
        spec: The experiment's file.
        topology: The network in which training begins.
        networks: The networks of the file's swaps, by their paths in the file.
        shortened: The number of rounds in the file if an override asks for fewer.
    """
    return [
        *_check_elastic(spec, topology),
        *_check_held(spec),
        *_check_link_codecs(spec, topology),
        *_check_hosts(spec, (topology, *networks.values())),
        *_check_events(spec, topology, networks, shortened),
        *spec.compute.check(topology),
    ]


def _check_held(spec: ExperimentFile) -> Iterator[Fault]:
    if spec.program is None and spec.controller.hold and spec.sync.scheme.conducted:
        rule = f"the strategy {spec.sync.strategy} chooses by plans, and `hold` keeps the first one"
        yield Fault("controller.hold", rule, "leave it out, or write another `strategy`")


def is_possible(rate_bps: float) -> bool:
    """Return whether a link can have this rate: from LEAST_RATE_BPS to MOST_RATE_BPS."""
    return LEAST_RATE_BPS <= rate_bps <= MOST_RATE_BPS


def check_swap(field: str, topology: Topology, after: Topology) -> Fault | None:
    """Return the fault of a swap from `topology` to `after`, or None if the same training can go on over `after`."""
    if set(topology.workers) == set(after.workers) and topology.lan == after.lan:
        return None
    names = ", ".join(worker.name for worker in topology.workers)
    rule = "a network swap in an experiment keeps its workers, their speeds and limits, and the LAN"
    return Fault(field, rule, f"a topology with the workers {names}, and the same `lan`")


def _check_events(
    spec: ExperimentFile, topology: Topology, networks: Mapping[str, Topology], shortened: int | None
) -> Iterator[Fault]:
    """Yield the faults of events that fit no network which may be in force when they happen.

    Events at a time happen in the order of their times, events of a round in the order of their rounds, and events of
    the same moment in the file's order. Whether a round ends before or after a time is not known beforehand: for an
    event of the one kind, any swap of the other kind may be the last one so far. See `check_parts` for the arguments.
    """
    of_rounds = [(number, event) for number, event in enumerate(spec.events) if event.at is None]
    timed = [(number, event) for number, event in enumerate(spec.events) if event.at is not None]
    for own, other in ((of_rounds, timed), (timed, of_rounds)):
        current = topology
        possible = {name for _, event in other if event.swap for name in networks[event.swap].links}
        for number, event in sorted(own, key=lambda item: item[1].at or item[1].round or 0):
            field = f"events.{number}"
            yield from _check_event(field, event, spec, topology, networks, possible.union(current.links))
            if spec.program is not None:
                yield from _check_beside_program(field, event)
            elif event.round is not None:
                most = shortened or spec.own_train.rounds
                # An event follows the end of its round; members that gossip have entered theirs.
                last = most - (spec.sync.scheme.exchange == "all-reduce")
                if event.round > last:
                    rule = f"nothing follows round {event.round}, because training has {most} rounds"
                    yield Fault(f"{field}.round", rule, f"a round from 1 to {last}" if last else "a time, `at: 2s`")
            if event.swap:
                current = networks[event.swap]


def _check_beside_program(field: str, event: Event) -> Iterator[Fault]:
    """Yield the faults of an event while a program trains: its rounds are unknown, and it takes no messages."""
    wrong = {"round": "`at: 30s`", "kill": "an event of the network", "graph": "an event of the network"}
    for name, remedy in wrong.items():
        if getattr(event, name) is not None:
            yield Fault(f"{field}.{name}", OWN_TRAINING, remedy)


def _check_elastic(spec: ExperimentFile, topology: Topology) -> Iterator[Fault]:
    if spec.elastic is None:
        return
    count = len(topology.workers)
    if spec.elastic.quorum > count:
        rule = f"the quorum {spec.elastic.quorum} is more than the {count} workers of {topology.file}"
        yield Fault("elastic.quorum", rule, f"from 1 to {count}")
    scheme = spec.sync.scheme
    if not scheme.elastic:
        rule = f"the strategy {scheme.name} can't go on without a lost member"
        able = ", ".join(other.name for other in SCHEMES.values() if other.elastic)
        yield Fault("elastic", rule, f"`strategy:` one of {able}")
    try:
        spec.sync.own.check_elastic()
    except Misfit as error:
        yield Fault("elastic", error.problem, f"{error.remedy}, or no `elastic`")
    if scheme.exchange == "gossip" and "lease" in spec.elastic.model_fields_set:
        rule = "members that gossip have no lease: a member whose connection closes is lost"
        yield Fault("elastic.lease", rule, "leave it out")


def _check_hosts(spec: ExperimentFile, topologies: Sequence[Topology]) -> Iterator[Fault]:
    """Yield the faults of `hosts`: a site that no network has, or a scheme's file, which only this host has."""
    if spec.hosts is not None and is_file(spec.sync.strategy):
        rule = f"the other hosts do not have the scheme's file {spec.sync.strategy}"
        yield Fault("sync.strategy", rule, "a scheme of the testbed, or no `hosts`")
    elif isinstance(spec.hosts, dict):
        known = list(dict.fromkeys(site for topology in topologies for site in topology.sites))
        for site in spec.hosts:
            if site not in known:
                rule = f"no network of this experiment has the site {site!r}"
                yield Fault(f"hosts.{site}", rule, f"one of {', '.join(known)}")


def _check_link_codecs(spec: ExperimentFile, topology: Topology) -> Iterator[Fault]:
    """Yield the faults of `link_codecs` between anything but two sites. The two sites may lack a direct link."""
    for name in spec.sync.link_codecs:
        source, _, target = name.partition("->")
        if source == target or not {source, target} <= topology.sites.keys():
            rule = f"{name!r} does not lead from one site of {topology.file} to another"
            yield Fault(f"sync.link_codecs.{name}", rule, f"`a->b` with two of {', '.join(topology.sites)}")


def _check_event(
    field: str,
    event: Event,
    spec: ExperimentFile,
    topology: Topology,
    networks: Mapping[str, Topology],
    known: set[str],
) -> Iterator[Fault]:
    if event.change and event.change.link not in known:
        yield Fault(f"{field}.change.link", f"the network has no link {event.change.link!r} then", _some(known))
    if event.change and event.change.rate and not is_possible(rate := event.change.rate * spec.scale):
        rule = f"the rate is {rate:g} bit/s at the experiment's scale"
        yield Fault(f"{field}.change.rate", rule, f"a rate that leaves it {RATES}")
    if event.kill is not None and spec.program is None:
        workers = {worker.name for worker in topology.workers}
        if spec.elastic is None and not spec.sync.scheme.survives:
            surviving = " or ".join(scheme.name for scheme in SCHEMES.values() if scheme.survives)
            rule = f"a kill ends a run that is not elastic, unless its strategy is {surviving}"
            yield Fault(f"{field}.kill", rule, "`elastic: {quorum: 2}` beside it")
        if event.kill not in workers:
            yield Fault(f"{field}.kill", f"{topology.file} has no worker {event.kill!r}", _some(workers))
    if event.graph and spec.program is None and not spec.sync.scheme.regraphs:
        rule = f"the members of {spec.sync.strategy} can't change to another graph"
        able = " or ".join(scheme.name for scheme in SCHEMES.values() if scheme.regraphs)
        yield Fault(f"{field}.graph", rule, f"`strategy:` {able}")
    for kind in ("down", "up"):
        pair = getattr(event, kind)
        if pair and pair not in known:
            yield Fault(f"{field}.{kind}", f"the network has no link {pair!r} then", _some(known))
    if event.swap and (fault := check_swap(f"{field}.swap", topology, networks[event.swap])):
        yield fault


def _some(names: set[str]) -> str:
    return "one of " + ", ".join(sorted(names)[:12])
