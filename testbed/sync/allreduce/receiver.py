"""Takes what peers send a group: each chunk goes to its round, once that may be.

Which peers are connected to a member: on which channels, and who is gone. No lock of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from testbed.plan import Plan
from testbed.sync.allreduce.chunk_codec import ChunkHeaderFormat, Kind
from testbed.sync.allreduce.held_plans import HeldPlans
from testbed.sync.allreduce.rounds import RoundProgress, Rounds
from testbed.sync.errors import FrameError
from testbed.sync.transport import DIRECT, Outbox, Received


class Presence:
    """Of peers with `streams` direct connections each. `gone` says of each that is why."""

    def __init__(self, streams: int) -> None:
        self.gone: dict[str, str] = {}
        self._streams = streams
        self._channels: Counter[int] = Counter()
        self._drained: set[int] = set()
        self._ended: Counter[str] = Counter()

    def opened(self, channel: int) -> bool:
        """A peer wants to send on a channel; False when this member is done with forwarding what comes there."""
        welcome = channel not in self._drained
        self._channels[channel] += welcome
        return welcome

    def closed(self, peer: str, channel: int, error: str) -> None:
        """A peer's connection ended. One that ended well may have ended before others to the same peer, which still
        bring what is owed."""
        self._channels[channel] -= 1
        if channel == DIRECT:
            self._ended[peer] += 1
            if error or self._ended[peer] == self._streams:
                self.gone[peer] = error or "closed its connection"

    def quiet(self, channel: int) -> bool:
        """Whether nobody sends on a channel now."""
        return not self._channels[channel]

    def drain(self, channel: int) -> None:
        """Let nobody send on a channel any more."""
        self._drained.add(channel)

    def blocking(self, missing: Mapping[str, str], plan: Plan, member: str) -> str | None:
        """Return a lost peer that `member` waits for, or None when all may still bring what they owe.

        What a peer sent may still be with those who forward for it.
        """
        for peer in missing:
            routes = [route for route in plan.auxiliary if (route.source, route.target) == (peer, member)]
            if peer in self.gone and {via for route in routes for via in route.via} <= self.gone.keys():
                return peer
        return None


class Loss(NamedTuple):
    """A peer that is lost: its connection is `broken`, or it is only waited for."""

    peer: str
    why: str
    broken: bool = True


class ChunkReceiver:
    """What a Listener hands a group's frames to. With `on_lost` a peer that is gone is told there."""

    def __init__(
        self,
        headers: ChunkHeaderFormat,
        plans: HeldPlans,
        rounds: Rounds,
        presence: Presence,
        progress: RoundProgress,
        outbox: Outbox,
        on_lost: Callable[[Loss], None] | None,
    ) -> None:
        self.header_bytes = headers.size
        self.outbox: Outbox | None = outbox
        self._headers = headers
        self._plans = plans
        self._rounds = rounds
        self._presence = presence
        self._progress = progress
        self._on_lost = on_lost

    @property
    def most_bytes(self) -> int:
        """What a frame's payload takes at most."""
        return self._plans.most_bytes

    def opened(self, peer: str, channel: int) -> bool:
        """A peer wants to send on a channel; False when this member is done with forwarding what comes there."""
        with self._progress.changed:
            return self._presence.opened(channel)

    def take(self, received: Received) -> None:
        """Take a chunk; waits until this member is ready to. FrameError when it has no business here."""
        header = self._headers.unpack(received.frame.header)
        self._progress.started.wait()
        with self._progress.changed:
            if header.kind is Kind.MEAN and header.successor > self._plans.newest:
                raise FrameError(
                    f"round {header.round}: {received.source} claims epoch {header.successor} for the next round; "
                    f"the controller has told of none after {self._plans.newest}",
                    rule="unknown-epoch",
                    member=received.source,
                    round=header.round,
                    epoch=header.successor,
                )
            if header.epoch not in self._plans:
                raise FrameError(
                    f"round {header.round}: epoch {header.epoch} is not held",
                    rule="unknown-epoch",
                    round=header.round,
                    epoch=header.epoch,
                )
            while self._rounds.waits(header):
                self._progress.check()
                self._progress.changed.wait()
            current = self._rounds.of(header)
        current.take(header, received)

    def closed(self, peer: str, channel: int, error: str) -> None:
        """A peer's connection ended: an error for the rounds that wait for the peer, and only for those."""
        with self._progress.changed:
            self._presence.closed(peer, channel, error)
            lost = self._presence.gone.get(peer) if self._progress.failure is None else None
            self._progress.changed.notify_all()
        if lost and self._on_lost is not None:
            self._on_lost(Loss(peer, lost))
