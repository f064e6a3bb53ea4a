"""Shaping outside the kernel, for kernels without sch_netem: packets wait in NFQUEUE until the core releases them.

The core does rate, queue, delay, jitter and loss (core/main.c has the model). This module runs the core and sets the
rules in each namespace. If the core ends, for whatever reason, every link is dead, because the rules stay.
"""

from __future__ import annotations

import os
import threading
import zlib
from array import array
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

from testbed.emulation.shaping.base import (
    Applied,
    FutureStates,
    LinkCounters,
    Port,
    Shaper,
    ShapingError,
    passes,
    refuse_attached,
)
from testbed.emulation.shaping.iptables import Rule, filter_bridged, replace_rules
from testbed.emulation.shaping.process import CoreProcess
from testbed.link import RED_WEIGHT_LOG, CoDel, Delivery, LinkState, Opportunities, Red

#: The number of links at once, which is the core's number of queues.
LINKS_AT_MOST = 4096
#: The commands in one message. Each has at most 350 bytes, and a message may have 256 KiB.
LINES_AT_ONCE = 700


class Attached(NamedTuple):
    """A link that is shaped: its port, and its queue's number, by which the core knows it."""

    port: Port
    queue: int


def encode(state: LinkState) -> str:
    """Encode a state for the core: bytes/s, bytes, seconds, seconds, a flag, four probabilities, the discipline."""
    rate = state.rate_bps / 8 if passes(state) else 0.0
    bursts = state.bursts
    chain = (bursts.good, bursts.bad, bursts.p, bursts.r) if bursts else (state.loss, 1.0, 0.0, 1.0)
    times = f"{state.queue_bytes} {state.delay_s!r} {state.jitter_s!r} {int(state.reorder)}"
    return f"{rate!r} {times} {' '.join(map(repr, chain))} {_encoded_discipline(state)}"


def _encoded_discipline(state: LinkState) -> str:
    """Encode a queue's discipline: its number in the core, and its four values there."""
    match state.queue.discipline:
        case CoDel(target_s, interval_s):
            return f"1 {target_s!r} {interval_s!r} 0 0"
        case Red(least, most, probability):
            limit = state.queue_bytes
            return f"2 {least * limit!r} {most * limit!r} {probability!r} {2.0**-RED_WEIGHT_LOG!r}"
    return "0 0 0 0 0"


def _attachment(queue: int, port: Port, state: LinkState) -> str:
    """Return the command that attaches a port. The link's name is the seed of its random draws."""
    seed = zlib.crc32(port.link.encode())
    return f"attach {queue} {seed} {encode(state)} {port.bridge or port.interface} {port.netns}"


def moments_file(opportunities: Opportunities) -> BinaryIO:
    """Return the delivery moments as a file in memory. The core maps it and keeps its view when it is closed."""
    file = os.fdopen(os.memfd_create("moments"), "wb")
    array("Q", opportunities.moments_ms).tofile(file)
    file.flush()
    return file


def decode(fields: list[str]) -> LinkCounters:
    """Return a link's counters from the fields of a line that the core printed."""
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
    """Shapes with NFQUEUE and one compiled process for all links of the network.

    The queue numbers of detached links are reused, the one that has been free for longest first.
    """

    name = "userspace"

    def __init__(self) -> None:
        """Start the core. Raises ShapingError if it cannot be built or started."""
        self._lock = threading.RLock()
        self._free = deque(range(LINKS_AT_MOST))
        self._attached: dict[str, Attached] = {}
        self._deliveries: dict[str, Delivery] = {}
        self._rules: dict[Path, dict[tuple[str, str | None], Rule]] = {}
        self._core = CoreProcess()

    @property
    def pid(self) -> int:
        """The core's process id."""
        return self._core.pid

    @property
    def realtime(self) -> bool:
        """True if the core has real-time priority."""
        with self._lock:
            return self._core.realtime

    def attach(self, ports: Mapping[Port, LinkState]) -> None:
        """Send the ports' packets through queues of the core. Raises ShapingError; after any error none is attached."""
        with self._lock:
            refuse_attached(ports, self._attached)
            if len(ports) > len(self._free):
                raise ShapingError(
                    f"the userspace backend shapes at most {LINKS_AT_MOST} links at once; remove some links",
                    rule="too-many",
                    given=len(self._attached) + len(ports),
                )
            filter_bridged({port.netns for port in ports if port.bridge is not None})
            added = {port.link: Attached(port, self._free.popleft()) for port in ports}
            self._attached.update(added)
            try:
                # The rules come first: from then on the ports pass nothing, until the core listens.
                self._set_rules(added.values())
                self._tell(_attachment(added[port.link].queue, port, state) for port, state in ports.items())
                self._follow({port.link: state for port, state in ports.items()})
            except Exception:  # ShapingError, or the kernel gave no further file or thread
                with suppress(ShapingError):
                    self._detach(added)
                raise

    def apply(self, states: Mapping[str, LinkState], coming: Mapping[str, FutureStates] | None = None) -> None:
        """Change links in place, as one command; `coming` replaces the links' future states."""
        with self._lock:
            lines = [f"set {self._queue(link)} {encode(state)}" for link, state in states.items()]
            forgotten = [f"forget {self._queue(link)}" for link in coming or {}]
            self._tell([*forgotten, *lines, *self._later(coming or {})])
            self._follow(states)

    def expect(self, coming: Mapping[str, FutureStates]) -> None:
        """Append future states to those that the core holds."""
        with self._lock:
            self._tell(self._later(coming))

    def applied(self) -> list[Applied]:
        """Return the future states that took effect since the last call. The core answers in parts."""
        found: list[Applied] = []
        with self._lock:
            links = self._links()
            while rows := [line.split() for line in self._core.ask("applied")]:
                found += [
                    Applied(links[int(queue)], float(due), float(late))
                    for queue, due, late in rows
                    if int(queue) in links
                ]
        return found

    def detach(self, link: str) -> None:
        """Take a link from the core, if it is attached; its rules stay, so its port passes nothing."""
        with self._lock:
            if link in self._attached:
                self._detach([link])

    def counters(self) -> dict[str, LinkCounters]:
        """Return the totals of every attached link since its `attach`. The core answers in parts."""
        found: dict[str, LinkCounters] = {}
        with self._lock:
            links, first = self._links(), 0
            while len(found) < len(links):
                rows = [line.split() for line in self._core.ask(f"counters {first}")]
                found |= {links[int(queue)]: decode(fields) for queue, *fields in rows if int(queue) in links}
                first = int(rows[-1][0]) + 1
        return found

    def failure(self) -> str | None:
        """Return why the core has ended, or None while it runs."""
        return self._core.failure()

    def close(self) -> None:
        """End the core. The rules stay until their namespaces end, so the ports pass nothing."""
        with self._lock:
            self._core.close()
            self._attached.clear()
            self._deliveries.clear()

    def _queue(self, link: str) -> int:
        return self._attached[link].queue

    def _links(self) -> dict[int, str]:
        """Return the links by number. The core may know one more, if it did not answer a `detach` in time."""
        return {attached.queue: link for link, attached in self._attached.items()}

    def _detach(self, links: Collection[str]) -> None:
        """Forget links, here and in the core. Their numbers are free once the core has forgotten them."""
        gone = [self._attached.pop(link) for link in links]
        for port, queue in gone:
            self._deliveries.pop(port.link, None)
            rules, place = self._rules[port.netns], _device_and_address(port)
            if rules[place].queue == queue:  # otherwise the rule is another link's by now
                rules[place] = replace(rules[place], queue=None)
        self._tell(f"detach {queue}" for _, queue in gone)
        self._free.extend(queue for _, queue in gone)

    def _follow(self, states: Mapping[str, LinkState]) -> None:
        """Make links serve the delivery opportunities in their states, or their rate again."""
        for link, state in states.items():
            delivery = state.delivery
            if delivery is self._deliveries.get(link):
                continue
            if delivery is None:
                self._core.ask(f"unfollow {self._queue(link)}")
                del self._deliveries[link]
                continue
            with moments_file(delivery.opportunities) as file:
                what = f"{delivery.began_s!r} {delivery.opportunities.bytes_each!r} {delivery.end}"
                self._core.ask(f"follow {self._queue(link)} {what}", file.fileno())
            self._deliveries[link] = delivery

    def _later(self, coming: Mapping[str, FutureStates]) -> list[str]:
        """Return the commands that queue future states."""
        return [
            f"later {self._queue(link)} {due_s!r} {encode(state)}"
            for link, states in coming.items()
            for due_s, state in states
        ]

    def _set_rules(self, added: Collection[Attached]) -> None:
        """Send ports' packets to their queues.

        Rules outlive `detach`, so that a port nobody shapes passes nothing: its packets go to a queue without a
        listener. That queue's number may be reused for another port, so together with the new rules, stale rules in
        their namespaces are turned into drops. A port that is attached again takes its rule over.
        """
        namespaces = {attached.port.netns for attached in added}
        for port, queue in added:
            self._rules.setdefault(port.netns, {})[_device_and_address(port)] = Rule(*_device_and_address(port), queue)
        replace_rules({netns: self._rules[netns].values() for netns in namespaces})

    def _tell(self, lines: Iterable[str]) -> None:
        """Send commands, as many at once as a message holds. Raises ShapingError."""
        rest = list(lines)
        while rest:
            self._core.ask("\n".join(rest[:LINES_AT_ONCE]))
            del rest[:LINES_AT_ONCE]


def _device_and_address(port: Port) -> tuple[str, str | None]:
    """Return the device, and the address or None, by which rules tell the port's packets from others."""
    return port.bridge or port.interface, port.address
