"""Members that speak the real protocol over the real socket, and transfer over a network that is only reckoned.

A round takes what the cost model says of the true network; an edge is busy while it, or what feeds it, drains,
and for some round trips more. So relays look busy behind a slow link, as TCP's own accounts have it.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

from testbed.plan import Plan, Tree
from testbed.planning import CostModel, Pair, View
from testbed.planning.constraints import Constraints
from testbed.protocol import (
    MAX_LINE_BYTES,
    Goodbye,
    Held,
    Hello,
    Message,
    PeerSample,
    Prepare,
    Report,
    Stop,
    Welcome,
    decode,
    encode,
)

#: Round trips that an edge stays busy beyond draining, and how much longer than reckoned a transfer may take.
OVERHEAD_RTTS = 3
NOISE = 0.15


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
    """All members of a view; `network` is what really is, and may be replaced at any time."""

    def __init__(self, socket: Path, network: View, seed: int = 1) -> None:
        self.network = network
        self.members: dict[str, Member] = {}
        self.round = 0
        self.clock_s = 1_000.0
        self.epochs: list[int] = []
        self._socket = socket
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
        samples = transfers(self.network, plan, self._random)
        for name, member in self.members.items():
            peers = tuple(sample for (source, _), sample in samples.items() if source == name)
            sent = sum(sample.bytes for sample in peers)
            member.send(
                Report(name, self.round, epoch, started, finished, 0.1, 0.0, sent, sent, 0, 0, {}, peers, {"loss": 1.0})
            )
        self.round += 1
        self.clock_s = finished + 0.1
        # The controller reads, decides and prepares: a real round gives it seconds, and a slow host's took over 20 ms.
        await asyncio.sleep(0.06)

    async def leave(self) -> None:
        for name, member in self.members.items():
            member.send(Goodbye(name, self.round, "d1635", {"accuracy": 0.97}))
        await self.hang_up()

    async def hang_up(self) -> None:
        for member in self.members.values():
            member.writer.close()
        await asyncio.gather(*self._listening, return_exceptions=True)


def transfers(network: View, plan: Plan, chance: random.Random) -> dict[Pair, PeerSample]:
    """What each edge's sender sees in a round of `plan` over `network`."""
    drains = CostModel(network).drains(plan)
    drawn = Constraints.of(network).drawn
    own = {(u, v): max(drains[name] for name in drawn[u, v]) for u, v, _ in plan.edges()}
    busy: dict[Pair, float] = {}
    sent: dict[Pair, float] = {}
    for tree in plan.trees:
        for pair, seconds in _busy(tree, own).items():
            busy[pair] = max(busy.get(pair, 0.0), seconds)
            sent[pair] = sent.get(pair, 0.0) + tree.share * network.model_bytes
    samples = {}
    for pair, seconds in busy.items():
        rtt = network.edges[pair].rtt_s
        took = (seconds + OVERHEAD_RTTS * rtt) * chance.uniform(1, 1 + NOISE)
        samples[pair] = PeerSample(pair[1], int(sent[pair]), took, rtt, 0)
    return samples


def _busy(tree: Tree, own: dict[Pair, float]) -> dict[Pair, float]:
    """Seconds each edge of a tree has something to send: as long as itself or anything that feeds it drains."""

    def up(member: str) -> float:
        return max([own[member, tree.reduce[member]], *(up(child) for child in tree.children(member, tree.reduce))])

    def down(member: str) -> float:
        parent = tree.broadcast[member]
        before = reduced if parent == tree.root else down(parent)
        return max(own[parent, member], before)

    reduced = max((up(child) for child in tree.children(tree.root, tree.reduce)), default=0.0)
    busy: dict[Pair, float] = {}
    for child, parent in tree.reduce.items():
        busy[child, parent] = up(child)
    for child, parent in tree.broadcast.items():
        busy[parent, child] = max(busy.get((parent, child), 0.0), down(child))
    return busy
