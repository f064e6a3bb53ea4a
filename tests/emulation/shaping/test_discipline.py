"""The core's disciplines beside models of them in Python, made from their papers, packet by packet."""

from __future__ import annotations

import math
import random
import subprocess
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from testbed.compiler import C_FLAGS, compile_c
from testbed.emulation.shaping.process import SOURCE
from testbed.emulation.shaping.userspace import encode
from testbed.link import MTU_FRAME_BYTES, CoDel, LinkState, Queue, Red

#: An event: what becomes of a packet, its number, and when.
Event = tuple[str, int, float]
#: A packet: its number, the moment of its arrival, and its bytes.
Packet = tuple[int, float, int]

SEED = 7


@dataclass
class TailDrop:
    """A queue before a server, with nothing that drops packets but the queue's limit."""

    state: LinkState
    waiting: deque[Packet] = field(default_factory=deque)
    events: list[Event] = field(default_factory=list)
    #: When the packet in service is served.
    free_s: float = 0.0

    @property
    def backlog(self) -> int:
        return sum(size for _, _, size in self.waiting)

    def run(self, packets: list[Packet]) -> list[Event]:
        for packet in packets:
            self._serve(packet[1])
            if self.refuses(packet[1]) or self.backlog >= self.state.queue_bytes:
                self.events.append(("drop", packet[0], packet[1]))
                continue
            if not self.waiting:
                self.free_s = packet[1] + packet[2] * 8 / self.state.rate_bps
            self.waiting.append(packet)
        self._serve(math.inf)
        return sorted(self.events, key=lambda event: event[1])

    def _serve(self, until_s: float) -> None:
        while self.waiting and self.free_s <= until_s:
            number, _, _ = self.waiting.popleft()
            self.events.append(("pass", number, self.free_s + self.state.delay_s))
            self.choose(self.free_s)
            if self.waiting:
                self.free_s += self.waiting[0][2] * 8 / self.state.rate_bps

    def drop_first(self, now_s: float) -> None:
        self.events.append(("drop", self.waiting.popleft()[0], now_s))

    def refuses(self, now_s: float) -> bool:
        """Return whether an arriving packet is dropped before the queue is full."""
        return False

    def choose(self, now_s: float) -> None:
        """Drop what should not be served, before the next service."""


@dataclass
class CoDelQueue(TailDrop):
    """RFC 8289, section 5.5; with 16 intervals of memory of the count."""

    codel: CoDel = field(default_factory=CoDel)
    first_above_s: float = 0.0
    drop_next_s: float = 0.0
    count: int = 0
    last_count: int = 0
    dropping: bool = False

    def _ok_to_drop(self, now_s: float) -> bool:
        if not self.waiting:
            self.first_above_s = 0.0
            return False
        _, arrived_s, size = self.waiting[0]
        if now_s - arrived_s < self.codel.target_s or self.backlog - size <= MTU_FRAME_BYTES:
            self.first_above_s = 0.0
        elif self.first_above_s == 0:
            self.first_above_s = now_s + self.codel.interval_s
        else:
            return now_s >= self.first_above_s
        return False

    def _control_law(self, since_s: float) -> float:
        return since_s + self.codel.interval_s / math.sqrt(self.count)

    def choose(self, now_s: float) -> None:
        ok = self._ok_to_drop(now_s)
        if self.dropping:
            if not ok:
                self.dropping = False
            while self.dropping and now_s >= self.drop_next_s:
                self.drop_first(now_s)
                self.count += 1
                if self._ok_to_drop(now_s):
                    self.drop_next_s = self._control_law(self.drop_next_s)
                else:
                    self.dropping = False
        elif ok:
            self.drop_first(now_s)
            self._ok_to_drop(now_s)
            self.dropping = True
            delta, self.count = self.count - self.last_count, 1
            if delta > 1 and now_s - self.drop_next_s < 16 * self.codel.interval_s:
                self.count = delta
            self.last_count = self.count
            self.drop_next_s = self._control_law(now_s)


@dataclass
class RedQueue(TailDrop):
    """Floyd and Jacobson 1993: the efficient algorithm of section XI, which draws a number for each drop."""

    red: Red = field(default_factory=Red)
    average: float = 0.0
    idle_since_s: float = 0.0
    count: int = -1
    drawn: float = 0.0
    random: int = SEED

    def _chance(self) -> float:
        """Return a number uniform in [0, 1): splitmix64."""
        self.random = (self.random + 0x9E3779B97F4A7C15) % 2**64
        z = self.random
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return ((z ^ z >> 31) >> 11) / 2**53

    def refuses(self, now_s: float) -> bool:
        least, most = self.red.least * self.state.queue_bytes, self.red.most * self.state.queue_bytes
        weight = 2**-9
        if self.waiting:
            self.average += weight * (self.backlog - self.average)
        else:
            frames = (now_s - self.idle_since_s) * self.state.rate_bps / 8 / MTU_FRAME_BYTES
            self.average *= (1 - weight) ** frames
        if least <= self.average < most:
            self.count += 1
            probability = self.red.probability * (self.average - least) / (most - least)
            if self.count > 0 and self.count * probability >= self.drawn:
                self.count, self.drawn = 0, self._chance()
                return True
            if self.count == 0:
                self.drawn = self._chance()
            return False
        self.count = -1
        return self.average >= most

    def choose(self, now_s: float) -> None:
        if not self.waiting:
            self.idle_since_s = now_s


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [SOURCE / "core.h", SOURCE / "model.c", SOURCE / "discipline.c", Path(__file__).with_name("trial.c")]
    flags = (*C_FLAGS, "-Werror", f"-I{SOURCE}", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    return compile_c(sources, flags, tmp_path_factory.mktemp("trial") / "trial")


def packets_of(seed: int, load: float) -> list[Packet]:
    """Return packets of two lengths for a link of 10 Mbit/s: bursts, loads that change, and pauses."""
    draw, moment, found = random.Random(seed), 0.01, []
    for number in range(1, 12_001):
        size = draw.choice((MTU_FRAME_BYTES, MTU_FRAME_BYTES, 66))
        found.append((number, round(moment, 9), size))
        burst = draw.random() < 0.3
        moment += 0 if burst else draw.expovariate(load * (0.6 if number // 2000 % 2 else 1.0) / 0.6e-3)
        moment += draw.uniform(0.1, 2.0) if number % 3000 == 0 else 0
    return found


def core_s(trial: Path, state: LinkState, packets: list[Packet]) -> list[Event]:
    """Return what becomes of the packets in the core's model."""
    fields = encode(state).split()
    lines = [" ".join((*fields[:3], str(SEED), *fields[-5:])), *(f"{moment:.9f} {size}" for _, moment, size in packets)]
    said = subprocess.run([trial], input="\n".join(lines), capture_output=True, text=True, check=True).stdout
    events = [(what, int(number), float(at)) for what, number, at in map(str.split, said.splitlines())]
    return sorted(events, key=lambda event: event[1])


LIMIT = Queue(400e3, "bytes")


@pytest.mark.local
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("load", [1.0, 1.4])
@pytest.mark.parametrize(
    "discipline", [None, CoDel(), CoDel(0.02, 0.05), Red(), Red(0.02, 0.5, 0.2)], ids=lambda each: str(each)
)
def test_the_core_does_with_each_packet_what_the_paper_says(
    trial: Path, discipline: CoDel | Red | None, load: float, seed: int
) -> None:
    queue = Queue(LIMIT.amount, LIMIT.unit, discipline)
    state, packets = LinkState(10e6, 0.02, queue=queue), packets_of(seed, load)
    model: TailDrop
    match discipline:
        case CoDel():
            model = CoDelQueue(state, codel=discipline)
        case Red():
            model = RedQueue(state, red=discipline)
        case None:
            model = TailDrop(state)
    expected, found = model.run(packets), core_s(trial, state, packets)
    assert [event[:2] for event in found] == [event[:2] for event in expected]
    assert [at for _, _, at in found] == pytest.approx([at for _, _, at in expected], abs=1e-6)
    assert len(found) == len(packets)
    if discipline is not None:
        assert sum(what == "drop" for what, _, _ in found) > 50


@pytest.mark.pure
def test_codel_s_drops_come_closer_by_the_root_of_their_count() -> None:
    """A queue that nobody shortens: the n-th drop comes interval/√n after the one before."""
    state = LinkState(10e6, 0.0, queue=Queue(1e9, "bytes", CoDel()))
    events = CoDelQueue(state).run([(number, number * 1e-3, 1500) for number in range(3000)])
    dropped = [at for what, _, at in events if what == "drop"]
    gaps = [after - before for before, after in pairwise(dropped)][:8]
    assert gaps == pytest.approx([0.1 / math.sqrt(n) for n in range(1, 9)], abs=1.3e-3)
