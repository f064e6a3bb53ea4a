"""Members that speak the real protocol over the real socket, and transfer over a network that is only reckoned.

A round takes what the cost model says of the true network. Its edges all begin at once, share capacities max-min
fairly, and send what the plan puts on them; trains are a little off, as late stamps make them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.controller.server.member_server import SOCKET
from testbed.plan import Plan
from testbed.planning import CostModel, Pair, View
from testbed.planning.constraints import Constraints
from testbed.planning.events import max_min
from testbed.protocol import (
    MAX_LINE_BYTES,
    ControlMessage,
    Goodbye,
    Held,
    Hello,
    PeerSample,
    Prepare,
    Probe,
    Report,
    Stop,
    Train,
    Welcome,
    decode,
    encode,
)
from testbed.sync.transport.arrivals import LEAST_BYTES, MOST_BYTES, MOST_S
from tests.waiting import happens

#: Round trips that an edge stays busy beyond draining, and by which part trains are off.
OVERHEAD_RTTS = 3
NOISE = 0.02

#: Seconds between two rounds.
PAUSE_S = 0.1

#: Of the loop: a member's words take about five from when it writes them to when the controller has done with them.
TURNS = 50
#: What a probe is taken to send.
PROBED_BYTES = 512 * 1024

Floats = NDArray[np.float64]


@dataclass(slots=True)
class Member:
    """One member's connection and what it holds."""

    name: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    plans: dict[int, Plan] = field(default_factory=dict)
    successor: int = 0
    answer: str | None = ""  # to a Prepare: held, or refused with this text, or nothing at all
    stopped: str | None = None
    probes: set[Pair] = field(default_factory=set)

    def send(self, message: ControlMessage) -> None:
        self.writer.write(encode(message))

    async def read(self) -> ControlMessage | None:
        line = await self.reader.readline()
        return decode(line) if line else None

    async def listen(self) -> None:
        """Take plans and stops until the connection ends."""
        while message := await self.read():
            match message:
                case Welcome():
                    plan = Plan.from_json(message.plan)
                    self.plans[plan.epoch] = plan
                case Prepare():
                    self.prepare(Plan.from_json(message.plan))
                case Probe():
                    self.probes.add((self.name, message.peer))
                case Stop():
                    self.stopped = message.reason

    def prepare(self, plan: Plan) -> None:
        self.successor = 0
        if self.answer is not None:
            self.send(Held(self.name, plan.epoch, self.answer))
        if self.answer == "":
            self.plans[plan.epoch] = plan
            self.successor = plan.epoch


async def connect(sockets: Path, name: str, at: str = "") -> Member:
    """A member that has said hello, at its own socket unless it is `at` another one's."""
    reader, writer = await asyncio.open_unix_connection(sockets / (at or name) / SOCKET, limit=MAX_LINE_BYTES)
    member = Member(name, reader, writer)
    member.send(Hello(name, ("10.0.0.1", 4000)))
    return member


class Fleet:
    """All members of a view; `network` is what really is, and may be replaced at any time.

    After a round it waits as long as the controller `thinks`.
    """

    def __init__(self, sockets: Path, network: View, seed: int = 1, thinks: Callable[[], bool] = lambda: False) -> None:
        self.network = network
        self.members: dict[str, Member] = {}
        self.round = 0
        self.clock_s = time.time()
        self.epochs: list[int] = []
        self.probed: set[Pair] = set()
        self._sockets = sockets
        self._thinks = thinks
        self._random = random.Random(seed)
        self._listening: list[asyncio.Task[None]] = []

    async def join(self) -> None:
        for name in self.network.names:
            self.members[name] = await connect(self._sockets, name)
        self._listening = [asyncio.create_task(member.listen()) for member in self.members.values()]
        await happens(lambda: all(member.plans for member in self.members.values()))

    async def run(self, rounds: int) -> None:
        for _ in range(rounds):
            await self.one_round()

    async def one_round(self) -> None:
        current = self.epochs[-1] if self.epochs else 0
        ready = {max(member.successor, current) for member in self.members.values()}
        epoch = ready.pop() if len(ready) == 1 else current
        plan = next(iter(self.members.values())).plans[epoch]
        self.epochs.append(epoch)
        seconds = CostModel(self.network).predict(plan).seconds
        started, finished = self.clock_s, self.clock_s + seconds
        probes = take_probes((member.probes for member in self.members.values()), self.probed)
        samples, arrivals = transfers(self.network, plan, self._random, started, probes)
        for name, member in self.members.items():
            peers = tuple(sample for (source, _), sample in samples.items() if source == name)
            came = {source: trains for (source, target), trains in arrivals.items() if target == name}
            sent = sum(sample.bytes for sample in peers)
            timing = (started, finished, 0.1, 0.0, sent, sent, 0, 0, {})
            member.send(Report(name, self.round, epoch, *timing, peers, {"loss": 1.0}, arrivals=came))
        self.round += 1
        self.clock_s = finished + PAUSE_S
        await self._settle()

    async def _settle(self) -> None:
        """Let the controller read what was sent, decide, which real rounds leave time for, and prepare."""
        for _ in range(2):
            # What is sent over a local socket is read, taken and answered within some turns of the loop, however long
            # these take: a process that stands still finds that any time has passed when it goes on.
            for _ in range(TURNS):
                await asyncio.sleep(0)
            await asyncio.sleep(0.01)
            await happens(lambda: not self._thinks())

    async def leave(self) -> None:
        """Say goodbye, and hang up once the controller has heard it: it closes the line, or stops the member.

        A line that its member closes before loses the goodbye if the controller is just sending something.
        """
        for name, member in self.members.items():
            member.send(Goodbye(name, self.round, "d1635", {"accuracy": 0.97}))
        lines = list(zip(self.members.values(), self._listening, strict=True))
        await happens(lambda: all(line.done() or member.stopped is not None for member, line in lines))
        await self.hang_up()

    async def hang_up(self) -> None:
        for member in self.members.values():
            member.writer.close()
        await asyncio.gather(*self._listening, return_exceptions=True)


def take_probes(asked: Iterable[set[Pair]], probed: set[Pair]) -> set[Pair]:
    """Return the probes that members were `asked` for, a set each, empty these sets, and add the probes to `probed`."""
    taken: set[Pair] = set()
    for probes in asked:
        taken |= probes
        probes.clear()
    probed |= taken
    return taken


def transfers(
    network: View, plan: Plan, chance: random.Random, at_s: float = 0.0, probes: Collection[Pair] = ()
) -> tuple[dict[Pair, PeerSample], dict[Pair, tuple[Train, ...]]]:
    """Return each edge's sample and trains in a round of `plan` over `network` from `at_s` on, and of `probes`."""
    sent: dict[Pair, float] = {}
    for source, target, tree in plan.edges():
        share = plan.trees[tree].share * network.model_bytes
        sent[source, target] = sent.get((source, target), 0.0) + share
    for pair in probes:
        sent[pair] = sent.get(pair, 0.0) + PROBED_BYTES
    samples, arrivals = {}, {}
    for pair, (times, totals) in _drain(network, sent).items():
        rtt = network.edges[pair].rtt_s
        samples[pair] = PeerSample(pair[1], int(sent[pair]), times[-1] + OVERHEAD_RTTS * rtt, rtt, 0)
        arrivals[pair] = tuple(_trains(at_s + rtt / 2 + np.array(times), np.array(totals), chance))
    return samples, arrivals


def _trains(times: Floats, totals: Floats, chance: random.Random) -> Iterator[Train]:
    """Bytes that arrive without a pause, cut as members cut them."""
    began_s, before = times[0], 0.0
    while totals[-1] - before >= LEAST_BYTES:
        least_s, most_s = np.interp([before + LEAST_BYTES, before + MOST_BYTES], totals, times)
        ended_s = min(most_s, max(least_s, began_s + MOST_S), times[-1])
        after = float(np.interp(ended_s, times, totals))
        yield Train(float(began_s), float(ended_s - began_s), round((after - before) * chance.gauss(1, NOISE)))
        began_s, before = ended_s, after


def _drain(network: View, sent: dict[Pair, float]) -> dict[Pair, tuple[list[float], list[float]]]:
    """The bytes of each edge that are through by which seconds, all beginning at once; until it has sent all."""
    limits = Constraints.of(network)
    pairs = sorted(pair for pair in sent if sent[pair] > 1)
    capacities = {name: rate / 8 for name, rate in limits.goodput_bps.items()}
    left = np.array([sent[pair] for pair in pairs])
    curves: dict[Pair, tuple[list[float], list[float]]] = {pair: ([0.0], [0.0]) for pair in pairs}
    now = 0.0
    while len(going := np.flatnonzero(left > 1)):
        shared = max_min({i: limits.drawn[pairs[i]] for i in going}, capacities)
        rates = np.minimum([*shared.values()], 1e12)
        step = float((left[going] / rates).min())
        left[going] -= rates * step
        now += step
        for i in going:
            curves[pairs[i]][0].append(now)
            curves[pairs[i]][1].append(sent[pairs[i]] - left[i])
    return curves
