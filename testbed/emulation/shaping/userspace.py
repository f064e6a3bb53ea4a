"""Shaping outside the kernel, for kernels without sch_netem: packets wait in NFQUEUE until the core lets them
go.

Rate, queue, delay, jitter and loss are all the core's (see core/main.c, which says the model). Here is its life
and its port into each namespace. The core's end, for whatever reason, leaves every link dead, since the rules
stay.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import zlib
from array import array
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO, ClassVar

from testbed.emulation.shaping.base import (
    Applied,
    Coming,
    LinkCounters,
    Port,
    Shaper,
    ShapingError,
    passes,
    refuse_attached,
)
from testbed.emulation.shaping.build import build_core
from testbed.emulation.shaping.iptables import Rule, filter_bridged, replace_rules
from testbed.link import Delivery, LinkState, Opportunities

ANSWER_BYTES = 1 << 18
ANSWER_TIMEOUT_S = 10.0
#: Commands in one message, each of at most 200 bytes: a message may have 256 KiB.
LINES_AT_ONCE = 1000


def encode(state: LinkState) -> str:
    """A state as the core reads it: bytes/s, bytes, seconds, seconds, a flag, four probabilities."""
    rate = state.rate_bps / 8 if passes(state) else 0.0
    bursts = state.bursts
    chain = (bursts.good, bursts.bad, bursts.p, bursts.r) if bursts else (state.loss, 1.0, 0.0, 1.0)
    times = f"{state.queue_bytes} {state.delay_s!r} {state.jitter_s!r} {int(state.reorder)}"
    return f"{rate!r} {times} {' '.join(map(repr, chain))}"


def _attachment(queue: int, port: Port, state: LinkState) -> str:
    """The command that attaches a port; its link's name is the seed of what is drawn at random."""
    seed = zlib.crc32(port.link.encode())
    return f"attach {queue} {seed} {encode(state)} {port.bridge or port.interface} {port.netns}"


def moments_file(opportunities: Opportunities) -> BinaryIO:
    """The moments as the core maps them, in memory; closing the file leaves the core its own view of it."""
    file = os.fdopen(os.memfd_create("moments"), "wb")
    array("Q", opportunities.moments_ms).tofile(file)
    file.flush()
    return file


def decode(fields: list[str]) -> LinkCounters:
    """Counters as the core writes them."""
    packets, size, dropped_queue, dropped_loss, backlog, busy, steady, steady_bytes, allowed = fields
    return LinkCounters(
        packets=int(packets),
        bytes=int(size),
        dropped_queue=int(dropped_queue),
        dropped_loss=int(dropped_loss),
        backlog_bytes=int(backlog),
        busy_s=float(busy),
        steady_s=float(steady),
        steady_bytes=int(steady_bytes),
        allowed_bytes=float(allowed),
    )


class UserspaceShaper(Shaper):
    """NFQUEUE and one compiled process for all links of the network."""

    name: ClassVar[str] = "userspace"

    def __init__(self) -> None:
        """Start the core. Raises ShapingError when it cannot be built."""
        self._lock = threading.RLock()
        self._numbers = count()
        self._queues: dict[str, int] = {}
        self._deliveries: dict[str, Delivery] = {}
        self._rules: dict[Path, dict[tuple[str, str | None], Rule]] = {}
        core = build_core()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = ours
        self._channel.settimeout(ANSWER_TIMEOUT_S)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            ours.setsockopt(socket.SOL_SOCKET, option, ANSWER_BYTES)
            theirs.setsockopt(socket.SOL_SOCKET, option, ANSWER_BYTES)
        with theirs:
            # In a session of its own: an interrupt from the terminal is for us, who then take the network
            # down.
            self._core = subprocess.Popen(
                [core], stdin=theirs.fileno(), stdout=subprocess.DEVNULL, start_new_session=True
            )

    @property
    def pid(self) -> int:
        """The core's process."""
        return self._core.pid

    @property
    def realtime(self) -> bool | None:
        if self._core.poll() is not None:
            return False
        self.counters()  # what it asked the system for at its start it has by the time it answers
        return os.sched_getscheduler(self.pid) == os.SCHED_RR

    def attach(self, ports: Mapping[Port, LinkState]) -> None:
        with self._lock:
            refuse_attached(ports, self._queues)
            filter_bridged({port.netns for port in ports if port.bridge is not None})
            queues = {port.link: next(self._numbers) for port in ports}
            # The rules first: from then on the ports are dead, until the core listens.
            self._set_rules({port: queues[port.link] for port in ports})
            self._queues.update(queues)
            try:
                self._tell(_attachment(queues[port.link], port, state) for port, state in ports.items())
                self._follow({port.link: state for port, state in ports.items()})
            except ShapingError:
                for link in queues:
                    with suppress(ShapingError):  # it was not its turn yet
                        self.detach(link)
                raise

    def apply(self, states: Mapping[str, LinkState], coming: Mapping[str, Coming] | None = None) -> None:
        with self._lock:
            lines = [f"set {self._queues[link]} {encode(state)}" for link, state in states.items()]
            forgotten = [f"forget {self._queues[link]}" for link in coming or {}]
            self._tell([*forgotten, *lines, *self._later(coming or {})])
            self._follow(states)

    def expect(self, coming: Mapping[str, Coming]) -> None:
        with self._lock:
            self._tell(self._later(coming))

    def applied(self) -> list[Applied]:
        found: list[Applied] = []
        with self._lock:
            links = {queue: link for link, queue in self._queues.items()}
            while lines := self._ask("applied").splitlines()[1:]:
                rows = (line.split() for line in lines)
                found += [
                    Applied(links[int(queue)], float(due), float(late))
                    for queue, due, late in rows
                    if int(queue) in links  # detached meanwhile
                ]
        return found

    def detach(self, link: str) -> None:
        with self._lock:
            self._deliveries.pop(link, None)
            queue = self._queues.pop(link, None)
            if queue is not None:
                self._ask(f"detach {queue}")

    def counters(self) -> dict[str, LinkCounters]:
        with self._lock:
            links = {queue: link for link, queue in self._queues.items()}
            rows = (line.split() for line in self._ask("counters").splitlines()[1:])
            return {links[int(number)]: decode(fields) for number, *fields in rows}

    def failure(self) -> str | None:
        status = self._core.poll()
        if status is None:
            return None
        ended = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"the shaping core {ended}, so every link is dead; take the network down and up again"

    def close(self) -> None:
        with self._lock:
            self._channel.close()
            # End of file is its signal to go; the kernel drops what it held.
            try:
                self._core.wait(ANSWER_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._core.kill()
                self._core.wait()
            self._queues.clear()
            self._deliveries.clear()

    def _follow(self, states: Mapping[str, LinkState]) -> None:
        """Have links serve the opportunities that came with their states, or their rate again."""
        for link, state in states.items():
            delivery = state.delivery
            if delivery is self._deliveries.get(link):
                continue
            if delivery is None:
                self._ask(f"unfollow {self._queues[link]}")
                del self._deliveries[link]
                continue
            with moments_file(delivery.opportunities) as file:
                what = f"{delivery.began_s!r} {delivery.opportunities.bytes_each!r} {delivery.end}"
                self._ask(f"follow {self._queues[link]} {what} /proc/{os.getpid()}/fd/{file.fileno()}")
            self._deliveries[link] = delivery

    def _later(self, coming: Mapping[str, Coming]) -> list[str]:
        """The commands by which states come."""
        return [
            f"later {self._queues[link]} {due_s!r} {encode(state)}"
            for link, states in coming.items()
            for due_s, state in states
        ]

    def _set_rules(self, queues: Mapping[Port, int]) -> None:
        """Rules outlive `detach`, so that a port nobody shapes is dead; a port attached again takes its rule
        over.
        """
        changed: dict[Path, dict[tuple[str, str | None], Rule]] = {}
        for port, queue in queues.items():
            rules = changed.setdefault(port.netns, dict(self._rules.get(port.netns, {})))
            key = (port.bridge or port.interface, port.address)
            rules[key] = Rule(*key, queue)
        replace_rules({netns: rules.values() for netns, rules in changed.items()})
        self._rules.update(changed)

    def _tell(self, lines: Iterable[str]) -> None:
        """Send commands, as many at once as a message holds. Raises what went wrong."""
        rest = list(lines)
        while rest:  # an empty message would read as the end of file
            self._ask("\n".join(rest[:LINES_AT_ONCE]))
            del rest[:LINES_AT_ONCE]

    def _ask(self, batch: str) -> str:
        """Send one batch and return the answer, or raise what went wrong."""
        try:
            self._channel.sendall(batch.encode())
            answer = self._channel.recv(ANSWER_BYTES).decode()
        except OSError as error:
            raise ShapingError(self.failure() or f"the shaping core does not answer: {error}") from error
        if not answer.startswith("ok"):
            reason = answer.removeprefix("error ") or self.failure() or "the shaping core has gone"
            raise ShapingError(reason)
        return answer
