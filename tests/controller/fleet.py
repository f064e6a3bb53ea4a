"""Members that speak the real protocol over the real socket, and transfer over a network that is only reckoned.

A round takes what the cost model says of the true network. Its edges all begin at once, share capacities max-min
fairly, and send what the plan puts on them; ticks are a little off, as acknowledgements come.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from testbed.controller.explore import PROBE_BYTES
from testbed.plan import Plan
from testbed.planning import CostModel, Pair, View
from testbed.planning.constraints import Constraints
from testbed.planning.fair import Fair
from testbed.protocol import (
    MAX_LINE_BYTES,
    TICK_S,
    Goodbye,
    Held,
    Hello,
    Message,
    PeerSample,
    Prepare,
    Probe,
    Report,
    Stop,
    Tick,
    Welcome,
    decode,
    encode,
)
from testbed.sync.meter import Ticks
from testbed.sync.tcpinfo import TcpInfo

#: Round trips that an edge stays busy beyond draining, and the part of a tick's bytes that is seen in it.
OVERHEAD_RTTS = 3
NOISE = (0.85, 1.1)


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

    def send(self, message: Message) -> None:
        self.writer.write(encode(message))

    async def read(self) -> Message | None:
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


async def connect(socket: Path, name: str, token: str = "secret") -> Member:
    """A member that has said hello."""
    reader, writer = await asyncio.open_unix_connection(socket, limit=MAX_LINE_BYTES)
    member = Member(name, reader, writer)
    member.send(Hello(name, ("10.0.0.1", 4000), token=token))
    return member


class Fleet:
    """All members of a view; `network` is what really is, and may be replaced at any time.

    After a round it waits as long as the controller `thinks`.
    """

    def __init__(self, socket: Path, network: View, seed: int = 1, thinks: Callable[[], bool] = lambda: False) -> None:
        self.network = network
        self.members: dict[str, Member] = {}
        self.round = 0
        self.clock_s = 1_000.0
        self.epochs: list[int] = []
        self.probed: set[Pair] = set()
        self._socket = socket
        self._thinks = thinks
        self._random = random.Random(seed)
        self._listening: list[asyncio.Task[None]] = []

    async def join(self) -> None:
        for name in self.network.names:
            self.members[name] = await connect(self._socket, name)
        self._listening = [asyncio.create_task(member.listen()) for member in self.members.values()]
        await self.until(lambda: all(member.plans for member in self.members.values()))

    async def until(self, condition) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.002)

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
        samples = transfers(self.network, plan, self._random, started, self._take_probes())
        for name, member in self.members.items():
            peers = tuple(sample for (source, _), sample in samples.items() if source == name)
            sent = sum(sample.bytes for sample in peers)
            member.send(
                Report(name, self.round, epoch, started, finished, 0.1, 0.0, sent, sent, 0, 0, {}, peers, {"loss": 1.0})
            )
        self.round += 1
        self.clock_s = finished + 0.1
        await asyncio.sleep(0.01)  # the controller reads ...
        await self.until(lambda: not self._thinks())  # ... decides, which real rounds leave time for ...
        await asyncio.sleep(0.01)  # ... and prepares

    def _take_probes(self) -> set[Pair]:
        taken = set().union(*(member.probes for member in self.members.values()))
        self.probed |= taken
        for member in self.members.values():
            member.probes.clear()
        return taken

    async def leave(self) -> None:
        for name, member in self.members.items():
            member.send(Goodbye(name, self.round, "d1635", {"accuracy": 0.97}))
        await self.hang_up()

    async def hang_up(self) -> None:
        for member in self.members.values():
            member.writer.close()
        await asyncio.gather(*self._listening, return_exceptions=True)


def transfers(
    network: View, plan: Plan, chance: random.Random, at_s: float = 0.0, probes: Collection[Pair] = ()
) -> dict[Pair, PeerSample]:
    """What each edge's sender sees in a round of `plan` over `network` that begins at `at_s`, and of `probes` in it."""
    sent: dict[Pair, float] = {}
    for source, target, tree in plan.edges():
        share = plan.trees[tree].share * network.model_bytes
        sent[source, target] = sent.get((source, target), 0.0) + share
    for pair in probes:
        sent[pair] = sent.get(pair, 0.0) + PROBE_BYTES
    busy, ticks = _drain(network, sent, at_s)
    samples = {}
    for pair in sent:
        rtt = network.edges[pair].rtt_s
        noisy = tuple(
            tick._replace(bytes=round(tick.bytes * chance.uniform(*NOISE))) for tick in ticks[pair[0]][pair[1]]
        )
        samples[pair] = PeerSample(pair[1], int(sent[pair]), busy[pair] + OVERHEAD_RTTS * rtt, rtt, 0, ticks=noisy)
    return samples


def _drain(
    network: View, sent: dict[Pair, float], at_s: float
) -> tuple[dict[Pair, float], dict[str, dict[str, tuple[Tick, ...]]]]:
    """Seconds until each edge has sent its bytes, all beginning at once; and the ticks of each sender by peer."""
    limits = Constraints.of(network)
    pairs = sorted(sent)
    number = {name: i for i, name in enumerate(limits.goodput_bps)}
    capacities = [rate / 8 for rate in limits.goodput_bps.values()]
    fair = Fair(capacities, [[number[name] for name in limits.drawn[pair]] for pair in pairs])
    left = np.array([sent[pair] for pair in pairs])
    taken, busy = np.zeros(len(pairs)), np.zeros(len(pairs))
    counts = {pair: Ticks() for pair in pairs}
    now = 0.0

    def read() -> None:
        for i, pair in enumerate(pairs):
            counts[pair].read(
                at_s + now, {(pair[1], 0, 0): TcpInfo(int(taken[i]), busy[i], 0.01, 0.01, 0, 0, unsent_bytes=1)}
            )

    read()
    while len(going := np.flatnonzero(left > 1)):
        rates = np.minimum(fair.rates(going), 1e12)
        step = float((left[going] / rates).min())
        left[going] -= rates * step
        taken[going] += rates * step
        busy[going] += step
        now += step
        read()
    now += 2 * TICK_S
    read()
    ticks: dict[str, dict[str, tuple[Tick, ...]]] = {}
    for source, target in pairs:
        ticks.setdefault(source, {})[target] = counts[source, target].take().get(target, ())
    return dict(zip(pairs, busy, strict=True)), ticks
