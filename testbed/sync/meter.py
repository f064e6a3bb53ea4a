"""What each next hop acknowledged, tick by tick: from it the controller tells what paths carry.

A thread reads the sockets' own counters about once a tick. Nothing is sent for it, and no clock is shared but the
time of day, which says which ticks of two members fall together.

    readings     |-----------|------------------|---------|        late when the host has no time
    ticks        |     |     |     |     |     |     |     |       what grew is spread evenly over those in between

Busy is a connection that had something unsent at both readings and was never idle in between: the path takes no more.
The kernel's own busy time goes on until the last byte is acknowledged. One chunk, sent in 10 ms, made a link look busy
for 100 ms where its acknowledgement waited behind others, and fast links a tenth as fast as they were. It is passed on
where round trips say that there is a queue (`queued_ms`): on a link that got slow a few chunks may be all that there is
to send, and the kernel takes them at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from testbed.protocol import TICK_S, Tick
from testbed.sync.tcpinfo import TcpInfo

#: A connection: the peer, the lane to it, and the how-manieth connection of that lane.
Line = tuple[str, int, int]

#: Ticks that are kept for each peer until somebody takes them: a minute's. Of a longer round the end says enough.
KEPT = round(60 / TICK_S)


class Ticks:
    """Turns readings into ticks. Any thread may call."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._last: dict[Line, TcpInfo] = {}
        self._read_s = 0.0
        self._peers: dict[str, dict[int, tuple[float, float, float]]] = {}

    def take(self) -> dict[str, tuple[Tick, ...]]:
        """Each peer's ticks that are over and were not taken before, those in which nothing happened left out."""
        with self._guard:
            now = int(self._read_s / TICK_S)
            taken = {peer: _over(found, now) for peer, found in self._peers.items()}
            for found in self._peers.values():
                for number in [number for number in found if number < now]:
                    del found[number]
        return taken

    def read(self, at_s: float, counters: Mapping[Line, TcpInfo]) -> None:
        """Take a reading made at `at_s` (Unix time)."""
        with self._guard:
            for line, now in counters.items():
                before = self._last.get(line)
                if before is not None and at_s > self._read_s and now.bytes_acked >= before.bytes_acked:
                    grown = now.since(before)
                    busy_s = grown.busy_s if before.unsent_bytes and now.unsent_bytes else 0.0
                    queued_s = grown.busy_s if before.queues and now.queues else 0.0
                    self._spread(line[0], (grown.bytes_acked, busy_s, queued_s), self._read_s, at_s)
            self._last, self._read_s = dict(counters), at_s

    def _spread(self, peer: str, grown: tuple[float, float, float], began_s: float, ended_s: float) -> None:
        """Share what a connection did between two readings evenly among the ticks in between."""
        if not any(grown):
            return
        ticks = self._peers.setdefault(peer, {})
        for number in range(int(began_s / TICK_S), int(ended_s / TICK_S) + 1):
            part = (min(ended_s, (number + 1) * TICK_S) - max(began_s, number * TICK_S)) / (ended_s - began_s)
            if part > 0:
                acked, busy_s, queued_s = ticks.get(number, (0.0, 0.0, 0.0))
                ticks[number] = (acked + part * grown[0], busy_s + part * grown[1], queued_s + part * grown[2])
        while len(ticks) > KEPT:
            del ticks[next(iter(ticks))]


class Meter:
    """Reads what `look` returns into ticks, from a thread of its own, until `stop`."""

    def __init__(self, look: Callable[[], Mapping[Line, TcpInfo]]) -> None:
        self._look = look
        self._ticks = Ticks()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self._thread.start()

    def take(self) -> dict[str, tuple[Tick, ...]]:
        """Each peer's ticks since the last call."""
        return self._ticks.take()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(TICK_S - time.time() % TICK_S):
            self._ticks.read(time.time(), self._look())


def _over(found: Mapping[int, tuple[float, float, float]], now: int) -> tuple[Tick, ...]:
    """The ticks before tick `now`."""
    return tuple(
        Tick(number, round(sent), _of_tick(busy_s), _of_tick(queued_s))
        for number, (sent, busy_s, queued_s) in sorted(found.items())
        if number < now
    )


def _of_tick(seconds: float) -> int:
    """Milliseconds, of a tick at most: several connections are busy at a time."""
    return min(round(1e3 * seconds), round(1e3 * TICK_S))
