"""Measurements that members report to the controller: trains of packets, round trips, probes."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import floor, isfinite

import numpy as np

from testbed.link import TCP_PAYLOAD_BYTES
from testbed.planning import Pair
from testbed.planning.constraints import GOODPUT
from testbed.protocol import Arrived, PeerSample, Probe, Report, Train
from testbed.simulation.environment import Environment
from testbed.simulation.event_queue import SimulatedClocks
from testbed.simulation.members import NO_STEPS, DueReport, FinishedRound, StepTotals
from testbed.simulation.network import Floats, NetworkState, SimulatedNetwork
from testbed.simulation.round_model import SimulatedRound, Transfer
from testbed.sync.transport.arrivals import LEAST_BYTES, MOST_BYTES, MOST_S
from testbed.sync.transport.probe import COUNTED_BYTES, PAUSE_S, paced

#: The interval at which members report arrivals during a round that lasts longer than the interval (sync/reports.py).
REPORT_S = 0.25

#: The longest pause of a sender, in seconds, between two chunks of one train.
GAP_S = 1e-6

#: A train of a probe gets at least this fraction of a link beside the rounds, from which it takes nothing. With more,
#: the link would seem to exceed its rate by more than trains are off (`telemetry.bottleneck.CLEARLY`).
LEAST_SHARE = 0.1

#: A probe meets the transfers of this many rounds: the current one and the one before.
PROBED_ROUNDS = 2


class Measurements:
    """Simulates the members' measurements of their paths, and their reports of these to the controller."""

    def __init__(self, environment: Environment, names: Sequence[str], measure: bool) -> None:
        """Prepare to simulate the measurements of these members.

        Without `measure` members only report rounds, and measure no paths.
        """
        self._environment = environment
        self._measure = measure
        self._members = {name: MemberMeasurements(name, environment.queue.clocks, measure) for name in names}
        self._probes = ProbeModel(environment.network, environment.queue.clocks)

    def probe(self, member: str, probe: Probe) -> None:
        """Simulate a member's probe of the path to a peer, which will report each train that arrives."""
        queue = self._environment.queue
        for number in range(probe.trains):
            at_s = queue.clocks.now_s + number * (train_s(probe) + PAUSE_S)
            queue.schedule(at_s, partial(self._send_train, member, probe))

    def _send_train(self, member: str, probe: Probe) -> None:
        train = self._probes.train(member, probe, self._environment.queue.clocks.now_s)
        if train is not None:
            self._members[probe.peer].add_trains(member, [train])

    def add_round(self, done: SimulatedRound) -> None:
        """Measure a round's transfers, each when it arrives, and schedule the reports during the round."""
        self._probes.add_round(done)
        queue = self._environment.queue
        for (source, target), sent in done.transfers.items():
            self._members[target].add_trains(source, trains(sent, queue.clocks.zero_s))
        for name, member in self._members.items() if self._measure else ():
            first, last = done.began_s[name] / REPORT_S, done.finished_s[name] / REPORT_S
            for tick in range(floor(first) + 1, floor(last) + 1):
                queue.schedule(tick * REPORT_S, partial(self._report_arrivals, member))

    def _report_arrivals(self, member: MemberMeasurements) -> None:
        self._environment.controller.receive(member.arrived())

    def report(self, name: str, due: DueReport) -> None:
        """Report a member's rounds, the last one with the steps before it and the arrivals until now."""
        for finished in due.rounds:
            last = finished is due.rounds[-1]
            report = self._members[name].report(finished, due.steps if last else NO_STEPS, last)
            self._environment.controller.receive(report)


class MemberMeasurements:
    """The measurements of one member, as messages to the controller."""

    def __init__(self, name: str, clocks: SimulatedClocks, measure: bool) -> None:
        self._name = name
        self._measure = measure
        self._clocks = clocks
        self._coming: list[tuple[float, str, Train]] = []  # a heap, by the moment at which each train is over

    def add_trains(self, peer: str, coming: Iterable[tuple[float, Train]]) -> None:
        """Add a peer's trains, each with the moment at which it is over."""
        for over_s, train in coming if self._measure else ():
            heapq.heappush(self._coming, (over_s, peer, train))

    def arrived(self) -> Arrived:
        """Return a message with the trains that are over by now."""
        return Arrived(self._name, self._arrivals())

    def report(self, finished: FinishedRound, steps: StepTotals, arrivals: bool) -> Report:
        """Return the report of a round and the steps before it, with the `arrivals` until now if asked for."""
        done = finished.outcome
        sent, received = done.sent[self._name], done.received[self._name]
        began_s = done.began_s[self._name]
        return Report(
            member=self._name,
            round=finished.number,
            epoch=finished.plan.epoch,
            started_s=self._clocks.zero_s + began_s,
            finished_s=self._clocks.zero_s + done.finished_s[self._name],
            compute_s=0.0,
            paced_s=steps.seconds,
            sent_bytes=round(_size(sent, done.detoured, self._name, 0)),
            received_bytes=round(_size(received, done.detoured, self._name, 1)),
            lost=0,
            duplicated=0,
            waited={peer: max(its[-1].came_s - began_s, 0.0) for peer, its in received.items()},
            peers=tuple(self._sample(peer, its, done.network) for peer, its in sent.items()) if self._measure else (),
            metrics=steps.metrics,
            arrivals=self._arrivals() if arrivals else {},
            drift=steps.drift,
        )

    def _sample(self, peer: str, sent: Sequence[Transfer], state: NetworkState) -> PeerSample:
        rtt_s = state.delay_s(self._name, peer) + state.delay_s(peer, self._name)
        return PeerSample(
            peer=peer,
            bytes=round(sum(chunk.bytes for chunk in sent)),
            busy_s=sum(chunk.ended_s - chunk.began_s for chunk in sent),
            rtt_s=rtt_s if isfinite(rtt_s) else 0.0,  # 0 is an unknown round trip
            retransmits=0,
        )

    def _arrivals(self) -> dict[str, tuple[Train, ...]]:
        found: dict[str, list[Train]] = {}
        while self._coming and self._coming[0][0] <= self._clocks.now_s:
            _, peer, train = heapq.heappop(self._coming)
            found.setdefault(peer, []).append(train)
        return {peer: tuple(its) for peer, its in found.items()}


def _size(own: Mapping[str, Sequence[Transfer]], detoured: Mapping[Pair, float], member: str, end: int) -> float:
    """Return the bytes that a member sent (`end` is 0) or received (1): its own transfers, and chunks on detours."""
    direct = sum(chunk.bytes for its in own.values() for chunk in its)
    return direct + sum(size for pair, size in detoured.items() if pair[end] == member)


def trains(sent: Sequence[Transfer], zero_s: float) -> Iterator[tuple[float, Train]]:
    """Yield the trains that a receiver would see of a sender's chunks in order (see sync/transport/arrivals).

    Training began at `zero_s`, in Unix time.

    Yields:
        When each train was over, in seconds after training began, and the train, in Unix time.
    """
    run: list[Transfer] = []
    for chunk in sent:
        if run and (chunk.began_s - run[-1].ended_s > GAP_S or _is_long(run)):
            yield from _train(run, zero_s)
            run = []
        run.append(chunk)
    if run:
        yield from _train(run, zero_s)


def _is_long(run: Sequence[Transfer]) -> bool:
    size = sum(chunk.bytes for chunk in run)
    return size >= MOST_BYTES or (size >= LEAST_BYTES and run[-1].came_s - run[0].first_s >= MOST_S)


def _train(run: Sequence[Transfer], zero_s: float) -> Iterator[tuple[float, Train]]:
    """Yield the train that a receiver sees of chunks sent back to back; nothing if it is too short to measure."""
    whole = sum(chunk.bytes for chunk in run)
    seconds, size = run[-1].came_s - run[0].first_s, int(whole) - TCP_PAYLOAD_BYTES
    if size < LEAST_BYTES or seconds <= 0:
        return
    first_s = seconds * TCP_PAYLOAD_BYTES / whole
    began_s, lasted_s = zero_s + run[0].first_s + first_s, seconds - first_s
    if lasted_s >= 1e-6:
        paces = [int(chunk.pace) for chunk in run]
        yield run[-1].came_s, Train(round(began_s, 5), round(lasted_s, 6), size, min(paces), max(paces))


def train_s(probe: Probe) -> float:
    """Return the seconds in which a train of a probe leaves its sender."""
    packets, pace = paced(probe)
    return (packets - 1) * COUNTED_BYTES / pace


class ProbeModel:
    """Simulates probes, which measure the rate that rounds leave free on a path.

    Probes take nothing from the rounds: they send at most 2.5 % of the bytes that a path could carry.
    """

    def __init__(self, network: SimulatedNetwork, clocks: SimulatedClocks) -> None:
        self.network = network
        self._clocks = clocks
        self._rounds: deque[SimulatedRound] = deque(maxlen=PROBED_ROUNDS)

    def add_round(self, done: SimulatedRound) -> None:
        """Add a round whose transfers later probes may meet."""
        self._rounds.append(done)

    def train(self, member: str, probe: Probe, now_s: float) -> tuple[float, Train] | None:
        """Return a train of a probe that a member sends at `now_s`, in seconds after training began.

        Returns:
            When the train is over, in seconds after training began, and the train, in Unix time. None if the two
            members share a site, or if there is no path between them, or a link on it is down or loses everything.
        """
        state = self.network.at(now_s)
        links = state.links_between(member, probe.peer)
        if not links or not all(state.states[name].up and _kept_bps(state, name) for name in links):
            return None
        packets, pace = paced(probe)
        size, seconds = (packets - 1) * COUNTED_BYTES, train_s(probe)
        at_s = now_s + state.topology.lan.delay
        for link in links:
            at_s += state.states[link].delay_s
            seconds = max(seconds, self._passing_s(state, link, at_s, size))
        first_s, seconds = now_s + state.delay_s(member, probe.peer), max(round(seconds, 6), 1e-6)
        began_s = round(self._clocks.zero_s + first_s, 5)
        return first_s + seconds, Train(began_s, seconds, int(size), int(pace))

    def _passing_s(self, state: NetworkState, link: str, at_s: float, size: float) -> float:
        """Return the seconds that a link takes from `at_s` on to pass `size` bytes beside the rounds."""
        whole = _kept_bps(state, link) * GOODPUT / 8
        ends_s = at_s + size / (LEAST_SHARE * whole)
        began_s, ended_s, sizes = self._beside(state, link, at_s, ends_s)
        times = np.unique(np.clip(np.concatenate([[at_s, ends_s], began_s, ended_s]), at_s, ends_s))
        parts = np.clip((times[:, None] - began_s) / (ended_s - began_s), 0.0, 1.0)
        carried = parts @ sizes
        left = np.maximum(whole * (times - at_s) - (carried - carried[0]), LEAST_SHARE * whole * (times - at_s))
        return float(np.interp(size, np.maximum.accumulate(left), times)) - at_s

    def _beside(self, state: NetworkState, link: str, from_s: float, until_s: float) -> tuple[Floats, Floats, Floats]:
        """Return the begin, the end and the bytes of each chunk that leaves a link between two moments."""
        found = [(from_s, until_s, 0.0)]
        for done in self._rounds:
            for pair, sent in done.transfers.items():
                route = state.links_between(*pair) or ()
                if link in route:
                    after = route[route.index(link) + 1 :]
                    beyond_s = state.topology.lan.delay + sum(state.states[name].delay_s for name in after)
                    chunks = ((its.first_s - beyond_s, its.came_s - beyond_s, its.bytes) for its in sent)
                    found += [its for its in chunks if its[0] < until_s and its[1] > from_s and its[0] < its[1]]
        began, ended, sizes = np.array(found).T
        return began, ended, sizes


def _kept_bps(state: NetworkState, link: str) -> float:
    """Return a link's rate, less the share of packets that it loses at random."""
    return state.states[link].rate_bps * (1 - state.states[link].loss)
