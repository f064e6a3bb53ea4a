"""Shaping by the kernel's own queueing disciplines, changed in place.

    a router's egress interface
    └─ 1:    netem   delay, jitter, loss; holds packets in flight
       └─ 2:    htb   everything to the default class
          └─ 2:1    class   rate = ceiling = the link's rate
             └─ 3:    bfifo   the bottleneck queue, limited in bytes; or 5: codel, or 6: red above 7: bfifo

netem is the outer qdisc, because only then is the bottleneck queue separate from the packets in flight. The other way
round (HTB with a netem leaf), one packet limit covers packets in flight and queued ones. A link of 100 Mbit/s and 100
ms with a queue of 250 kB needs 826 + 165 packets, but the 826 are not reserved for packets in flight, so a burst
arriving at twice the rate is cut long before 250 kB wait. And since netem counts a super-packet of 45 frames as one,
the limit means 45 times as much with segmentation offload as without. A bfifo counts bytes. Delay before or after the
queue makes no difference from end to end.

Inaccuracies: netem counts packets, so its limit is set where a link at its full rate with the smallest frames stays
below the limit, which only keeps a flood from filling the host's memory. A packet is charged at the rate at which it
leaves, and a class keeps its debt when it is changed: after a dip to 12 kbit/s nothing passes for up to a second.
Traces that dip lower are refused. A down link is netem with a loss of 100 %: packets already in it drain. A change of
RED's lengths sets its mean to 0, and RED does not see idle time, since HTB takes nothing from an empty queue. CoDel's
limit counts packets. A change of delay, jitter or loss ends a burst of losses.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

from testbed.emulation.network.netlink import NetlinkRequest
from testbed.emulation.shaping import tc
from testbed.emulation.shaping.base import (
    SUPER_PACKET_BYTES,
    Applied,
    FutureStates,
    LinkCounters,
    Port,
    Shaper,
    ShapingError,
    distorted_by_offload,
    passes,
    refuse_attached,
)
from testbed.emulation.shaping.timer import Batch, TimedRequests, Timer, TimerAnswer
from testbed.link import MTU_FRAME_BYTES, CoDel, LinkState, Red

#: A bucket that fills in this time bridges the timer's lateness: 1.25 MB at 10 Gbit/s, two frames at 64 kbit/s.
BURST_S = 1e-3
MIN_BURST_BYTES = 2 * MTU_FRAME_BYTES
#: The smallest frame, and room for bursts above the rate that wait in the delay line.
MIN_FRAME_BYTES = 64
SPARE_PACKETS = 10_000
#: If bytes wait in a queue at two looks at most this many seconds apart, they are taken to wait in between, too.
LOOK_S = 0.15
#: The kernel holds a jitter as nanoseconds in 31 bits, and takes a longer one as this one (net/sched/sch_netem.c).
MOST_JITTER_S = (2**31 - 1) * 1e-9
#: The kernel counts drops in 32 bits, and begins at 0 again after this many.
COUNTER = 2**32

_HTB, _CLASS = tc.handle(2), tc.handle(2, 1)
_FIFO, _CODEL, _RED, _RED_CLASS, _RED_FIFO = tc.handle(3), tc.handle(5), tc.handle(6), tc.handle(6, 1), tc.handle(7)


def burst_bytes(rate_bps: float) -> float:
    """Return the size of a rate limiter's bucket."""
    return max(rate_bps / 8 * BURST_S, MIN_BURST_BYTES)


def delay_line_packets(state: LinkState) -> int:
    """Return netem's packet limit: the smallest frames at full rate for the longest delay, and the queue.

    It is raised to a power of two, so that few changes of a rate change it: with each change of netem the kernel puts a
    chain of losses into its good state.
    """
    on_the_way = state.rate_bps / 8 * (state.delay_s + state.jitter_s)
    packets = ceil((on_the_way + state.queue_bytes) / MIN_FRAME_BYTES) + SPARE_PACKETS
    return 1 << (packets - 1).bit_length()


def queue_limit(state: LinkState) -> int:
    """Return the bfifo's limit in bytes.

    A bfifo drops whole packets, so a limit below a super-packet would never let one through. If hosts send single
    frames, the limit is the link's queue, and at least a frame.
    """
    return max(state.queue_bytes, MTU_FRAME_BYTES if distorted_by_offload(state) else SUPER_PACKET_BYTES)


@dataclass(slots=True)
class _Tree:
    """One link's qdiscs and counters."""

    control: tc.TrafficControl
    netns: Path
    index: int
    root: int
    state: LinkState
    since: float
    seen_at: float
    allowed_bytes: float = 0.0
    allowed_when_seen: float = 0.0
    counted: LinkCounters = field(default_factory=LinkCounters)
    #: The handle of the queue when it was last seen, and its counter of drops.
    queue_seen: int | None = None
    queue_drops: int = 0
    #: The drops in the whole tree, in netem and in the queues that it has had.
    drops: int = 0

    def enforce(self, now: float) -> None:
        """Add the bytes that the rate has allowed since the last call; the queue of a link that is down drains too."""
        self.allowed_bytes += self.state.rate_bps / 8 * (now - self.since)
        self.since = now

    def delay(self, state: LinkState, *, create: bool = False, dead: bool = False) -> NetlinkRequest:
        return tc.netem(
            self.index,
            self.root,
            delay_s=state.delay_s,
            jitter_s=state.jitter_s,
            reorder=state.reorder,
            loss=(state.bursts or state.loss) if passes(state) and not dead else 1.0,
            limit_packets=delay_line_packets(state),
            create=create,
        )

    def rate(self, state: LinkState, *, create: bool = False) -> NetlinkRequest:
        return tc.htb_class(self.index, _CLASS, _HTB, state.rate_bps, burst_bytes(state.rate_bps), create=create)

    def queue(self, state: LinkState, *, create: bool = False) -> list[NetlinkRequest]:
        limit = queue_limit(state)
        match state.queue.discipline:
            case CoDel(target_s, interval_s):
                packets = ceil(limit / MTU_FRAME_BYTES)
                return [tc.codel(self.index, _CODEL, _CLASS, target_s, interval_s, packets, create=create)]
            case Red(least, most, probability):
                red = tc.red(
                    self.index,
                    _RED,
                    _CLASS,
                    least_bytes=least * limit,
                    most_bytes=most * limit,
                    probability=probability,
                    rate_bps=state.rate_bps,
                    create=create,
                )
                return [red, tc.bfifo(self.index, _RED_FIFO, _RED_CLASS, limit, create=create)]
        return [tc.bfifo(self.index, _FIFO, _CLASS, limit, create=create)]

    def build(self) -> list[NetlinkRequest]:
        """Return requests that replace the present tree by one that drops all packets."""
        return [
            self.delay(self.state, create=True, dead=True),
            tc.htb(self.index, _HTB, tc.handle(self.root >> 16, 1), default_class=1),
            self.rate(self.state, create=True),
            *self.queue(self.state, create=True),
        ]

    def change(self, state: LinkState, before: LinkState | None = None) -> list[NetlinkRequest]:
        """Return the requests that change the tree from `before` (by default the state in force) to a new state.

        A link that goes down keeps its rate, so that packets already in it drain.
        """
        before = before or self.state
        requests = []
        if self.delay(state) != self.delay(before):
            requests.append(self.delay(state))
        if state.rate_bps > 0 and state.rate_bps != before.rate_bps:
            requests.append(self.rate(state))
        own, earlier = state.queue.discipline, before.queue.discipline
        if queue_limit(state) != queue_limit(before) or own != earlier:
            requests += self.queue(state, create=type(own) is not type(earlier))
        return requests


class NetemShaper(Shaper):
    """Shapes with netem, HTB and bfifo on every port, over one netlink socket for each namespace."""

    name = "netem"
    most_jitter_s = MOST_JITTER_S
    least_row_bps = 8.0 * MTU_FRAME_BYTES  # a frame a second

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._controls: dict[Path, tc.TrafficControl] = {}
        self._trees: dict[str, _Tree] = {}
        self._refusal: str | None = None
        self._timer: Timer | None = None
        self._environment = dict(os.environ)  # with this network's label; this program may bring up another one later
        self._coming: dict[str, deque[tuple[float, LinkState]]] = {}
        self._found: list[Applied] = []

    @property
    def realtime(self) -> bool:
        """True if the process that applies future states has real-time priority."""
        return self._its_timer().realtime

    def attach(self, ports: Mapping[Port, LinkState]) -> None:
        """Create a tree of qdiscs on each port. Raises ShapingError; after any error none of the ports is attached."""
        with self._lock:
            refuse_attached(ports, self._trees)
            for port, state in ports.items():
                self.check_jitter(port.link, state.jitter_s)
            try:
                for port, state in ports.items():
                    self._trees[port.link] = self._shape_port(port, state)
            except Exception:  # ShapingError, or the kernel gave no further thread
                for port in ports:
                    with suppress(ShapingError):
                        self.detach(port.link)
                raise

    def apply(self, states: Mapping[str, LinkState], coming: Mapping[str, FutureStates] | None = None) -> None:
        """Change the trees in place, as one batch; `coming` replaces the links' future states.

        A change that the kernel refuses is taken back: the kernel carries out the requests beside the refused one. The
        future states are then as before.
        """
        with self._lock:
            for link, state in states.items():
                self.check_jitter(link, state.jitter_s)
            self._check_coming(coming or {})
            before: dict[str, FutureStates] = {}
            if coming:
                self._note(self._its_timer().ask(Batch(forget=list(coming))))
                before = {link: self._coming.pop(link) for link in coming if link in self._coming}
            batches: dict[Path, list[NetlinkRequest]] = {}
            for link, state in states.items():
                tree = self._trees[link]
                batches.setdefault(tree.netns, []).extend(tree.change(state))
            for netns, requests in batches.items():
                try:
                    self._controls[netns].apply(*requests)
                except OSError as error:
                    refusal = f"the kernel refused to change a link in {netns}: {error.strerror}"
                    refusal += _missing_modules(error, states.values())
                    if not self._take_back(states):
                        self._refusal = refusal
                    elif before:
                        self.expect(before)
                    raise ShapingError(refusal) from error
            now = time.monotonic()
            for link, state in states.items():
                self._trees[link].enforce(now)
                self._trees[link].state = state
            if coming:
                self.expect(coming)

    def _check_coming(self, coming: Mapping[str, FutureStates]) -> None:
        for link, states in coming.items():
            for _, state in states:
                self.check_jitter(link, state.jitter_s)

    def _take_back(self, states: Mapping[str, LinkState]) -> bool:
        """Put the states before these in force again. Returns whether the kernel took all requests for that."""
        taken = True
        for link, state in states.items():
            tree = self._trees[link]
            try:
                self._controls[tree.netns].apply(*tree.change(tree.state, before=state))
            except OSError:
                taken = False
        return taken

    def expect(self, coming: Mapping[str, FutureStates]) -> None:
        """Append future states, as netlink requests that the timer's process sends when they are due."""
        with self._lock:
            self._check_coming(coming)
            timed: dict[str, list[TimedRequests]] = {}
            for link, states in coming.items():
                tree, ours = self._trees[link], self._coming.setdefault(link, deque())
                timed[link] = []
                for due_s, state in states:
                    before = ours[-1][1] if ours else tree.state
                    timed[link].append(TimedRequests(due_s, tree.netns, tuple(tree.change(state, before))))
                    ours.append((due_s, state))
            self._note(self._its_timer().ask(Batch(coming=timed)))

    def applied(self) -> list[Applied]:
        """Return the future states that took effect since the last call."""
        with self._lock:
            if self._timer is not None:
                self._note(self._timer.ask(Batch()))
            found, self._found = self._found, []
            return found

    def _note(self, answer: TimerAnswer) -> None:
        """Record the future states that took effect, by the timer's answer."""
        self._refusal = self._refusal or answer.refusal
        for applied in answer.applied:
            tree, coming = self._trees.get(applied.link), self._coming.get(applied.link)
            if tree is None or not coming:
                continue  # the link was detached, or its future states replaced, meanwhile
            _, state = coming.popleft()
            tree.enforce(applied.due_s + applied.late_s)
            tree.state = state
            self._found.append(applied)

    def _tell(self, batch: Batch) -> None:
        """Send the timer's process a batch. If it has ended, it applies no state, and `failure` says how it ended."""
        if self._timer is not None:
            with suppress(ShapingError):
                self._note(self._timer.ask(batch))

    def _its_timer(self) -> Timer:
        """Return the process that puts future states in force, started at first use."""
        if self._timer is None:
            self._timer = Timer(self._environment)
        return self._timer

    def detach(self, link: str) -> None:
        """Forget a link's future states, and make its port drop all packets."""
        with self._lock:
            tree = self._trees.pop(link, None)
            if tree is None:
                return
            if self._coming.pop(link, None):
                self._tell(Batch(forget=[link]))
            try:
                tree.control.apply(tree.delay(tree.state, dead=True))
            except OSError as error:
                if error.errno not in (errno.ENODEV, errno.ENOENT, errno.EINVAL):  # the interface is gone already
                    raise ShapingError(f"link {link} could not be stopped: {error.strerror}") from error
            finally:
                self._leave(tree.netns)

    def counters(self) -> dict[str, LinkCounters]:
        """Return the totals of every attached link, from the counters of its qdiscs.

        The states that took effect by now are noted first, since the bytes that a rate allowed are counted here.
        """
        with self._lock:
            self._tell(Batch())
            for control in set(self._controls.values()):
                qdiscs = control.qdiscs()
                now = time.monotonic()
                for tree in self._trees.values():
                    if tree.control is control and (tree.index, tree.root) in qdiscs:
                        own = {own: seen for (at, own), (_, seen) in qdiscs.items() if at == tree.index}
                        _update_counters(tree, now, own)
            return {link: tree.counted for link, tree in self._trees.items()}

    def failure(self) -> str | None:
        """Return the kernel's first refusal that left a wrong state, or why the timer's process died; else None."""
        return self._refusal or (self._timer.failure() if self._timer is not None else None)

    def close(self) -> None:
        """Stop the timer's process and detach every link."""
        with self._lock:
            if self._timer is not None:
                self._timer.close()
                self._timer = None
            self._coming.clear()
            for link in list(self._trees):
                self.detach(link)

    def _shape_port(self, port: Port, state: LinkState) -> _Tree:
        try:
            return self._create_tree(port, state)
        except OSError as error:
            self._leave(port.netns)
            why = f"link {port.link} could not be shaped on {port.interface} in {port.netns}: {error.strerror}"
            raise ShapingError(why + _missing_modules(error, [state])) from error

    def _create_tree(self, port: Port, state: LinkState) -> _Tree:
        control = self._controls.get(port.netns)
        if control is None:
            control = self._controls[port.netns] = tc.TrafficControl(port.netns)
        index = control.index(port.interface)
        # With another handle than the present root's, the kernel grafts a new tree in one step; the same handle would
        # change the old tree. So the interface is shaped, or dead, at every moment.
        present = {own for (at, own), (parent, _) in control.qdiscs().items() if at == index and parent == tc.ROOT}
        root = tc.handle(1) if tc.handle(1) not in present else tc.handle(4)
        now = time.monotonic()
        tree = _Tree(control, port.netns, index, root, state, since=now, seen_at=now)
        control.apply(*tree.build())
        control.apply(tree.delay(state))  # by itself: the kernel carries out the requests beside a refused one
        return tree

    def _leave(self, netns: Path) -> None:
        """Close the namespace's socket if no link is left in it."""
        if netns in self._controls and all(tree.netns != netns for tree in self._trees.values()):
            self._controls.pop(netns).close()
            self._tell(Batch(leave=[netns]))


def _missing_modules(error: OSError, states: Iterable[LinkState]) -> str:
    """Return the module that a discipline of these states may lack, and the remedy; empty for another error."""
    disciplines = {state.queue.discipline for state in states} - {None}
    if error.errno != errno.ENOENT or not disciplines:
        return ""
    modules = " ".join(sorted({f"sch_{type(its).__name__.lower()}" for its in disciplines}))
    return f". This kernel may lack {modules}: load it (modprobe -a {modules}), or use the userspace backend"


def _update_counters(tree: _Tree, now: float, seen: dict[int, tc.Statistics]) -> None:
    """Update a link's counters from `seen`, the statistics of its qdiscs by handle at the time `now`.

    The kernel does not report how long a queue existed. The time between two looks counts as busy if bytes waited at
    both ends of it and it was short (LOOK_S); over a longer time this is unknown. When another discipline replaces a
    queue, the drops of the old queue stay counted, including those since the last look.
    """
    tree.enforce(now)
    own = next(its for its in (_FIFO, _CODEL, _RED) if its in seen)
    queue, netem, htb = seen[own], seen[tree.root], seen[_HTB]
    before = tree.counted
    tree.drops += (netem.drops - tree.drops) % COUNTER
    dropped = (queue.drops - tree.queue_drops) % COUNTER
    if tree.queue_seen not in (None, own) or dropped >= COUNTER / 2:  # a lower counter is another queue's
        dropped = max(tree.drops - before.dropped_loss - before.dropped_queue, 0)
    tree.queue_seen, tree.queue_drops = own, queue.drops
    dropped += before.dropped_queue
    counted = replace(
        before,
        packets=htb.packets,
        bytes=htb.bytes,
        dropped_queue=dropped,
        # netem counts its inner qdiscs' drops too; its counter may have been read before a drop of theirs.
        dropped_loss=max(tree.drops - dropped, before.dropped_loss),
        backlog_bytes=queue.backlog_bytes,
    )
    if before.backlog_bytes > 0 and queue.backlog_bytes > 0 and now - tree.seen_at <= LOOK_S:
        counted = replace(
            counted,
            busy_s=before.busy_s + now - tree.seen_at,
            steady_s=before.steady_s + now - tree.seen_at,
            steady_bytes=before.steady_bytes + htb.bytes - before.bytes,
            allowed_bytes=before.allowed_bytes + tree.allowed_bytes - tree.allowed_when_seen,
        )
    tree.counted, tree.seen_at, tree.allowed_when_seen = counted, now, tree.allowed_bytes
