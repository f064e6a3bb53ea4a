"""Receives the frames of a group's peers, and tracks which peers are connected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from testbed.plan import Plan
from testbed.sync.allreduce.chunk_codec import ChunkHeaderFormat, Kind
from testbed.sync.allreduce.held_plans import HeldPlans
from testbed.sync.allreduce.rounds import RoundProgress, Rounds
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.transport import DIRECT, Outbox, Received


class PeerConnections:
    """The connections that peers have to this member, by channel, and the peers that are gone.

    The caller holds the group's lock.
    """

    def __init__(self, streams: int) -> None:
        #: Why each lost peer is gone.
        self.gone: dict[str, str] = {}
        self._streams = streams
        self._channels: Counter[int] = Counter()
        self._refused: set[int] = set()
        self._ended: Counter[str] = Counter()

    def opened(self, channel: int) -> bool:
        """Count a connection on `channel`. Returns False if this member forwards no frames on it any more."""
        welcome = channel not in self._refused
        self._channels[channel] += welcome
        return welcome

    def closed(self, peer: str, channel: int, error: str) -> None:
        """Count the end of a peer's connection; an empty `error` means a proper end.

        After a proper end, other connections of the same peer may still bring frames.
        """
        self._channels[channel] -= 1
        if channel == DIRECT:
            self._ended[peer] += 1
            if error or self._ended[peer] == self._streams:
                self.gone[peer] = error or "closed its connection"

    def is_idle(self, channel: int) -> bool:
        """Return whether no peer has a connection on `channel`."""
        return not self._channels[channel]

    def refuse(self, channel: int) -> None:
        """Accept no new connection on `channel`."""
        self._refused.add(channel)

    def blocking(self, missing: Mapping[str, str], plan: Plan, member: str) -> str | None:
        """Return a lost peer of `missing` whose data can't arrive at `member` any more, or None.

        Frames of a lost peer may still be at the members that forward for it.
        """
        for peer in missing:
            routes = [route for route in plan.auxiliary if (route.source, route.target) == (peer, member)]
            if peer in self.gone and {via for route in routes for via in route.via} <= self.gone.keys():
                return peer
        return None


class Loss(NamedTuple):
    """The loss of a peer, with the reason."""

    peer: str
    why: str
    #: True if the connection broke, False if this member only waits for the peer.
    broken: bool = True


class ChunkReceiver:
    """Takes a group's frames from a Listener and passes each chunk to its round. Reports lost peers to `on_lost`."""

    def __init__(
        self,
        headers: ChunkHeaderFormat,
        plans: HeldPlans,
        rounds: Rounds,
        connections: PeerConnections,
        progress: RoundProgress,
        outbox: Outbox,
        on_lost: Callable[[Loss], None] | None,
    ) -> None:
        self.header_bytes = headers.size
        self.outbox: Outbox | None = outbox
        self._headers = headers
        self._plans = plans
        self._rounds = rounds
        self._connections = connections
        self._progress = progress
        self._on_lost = on_lost

    @property
    def most_bytes(self) -> int:
        """The largest payload of a frame under any held plan, in bytes."""
        return self._plans.most_bytes

    def opened(self, peer: str, channel: int) -> bool:
        """Count a connection on `channel`. Returns False if this member forwards no frames on it any more."""
        with self._progress.changed:
            return self._connections.opened(channel)

    def take(self, received: Received) -> None:
        """Take a chunk. Waits until its round may begin here.

        Raises:
            FrameError: No correct member sends this chunk.
        """
        header = self._headers.unpack(received.frame.header)
        self._progress.started.wait()
        with self._progress.changed:
            if header.kind is Kind.MEAN and header.successor > self._plans.newest:
                raise FrameError(
                    f"round {header.round}: {received.source} claims epoch {header.successor} for the next round; "
                    f"the newest epoch that the controller announced is {self._plans.newest}",
                    rule="unknown-epoch",
                    member=received.source,
                    round=header.round,
                    epoch=header.successor,
                )
            if header.epoch not in self._plans:
                raise FrameError(
                    f"round {header.round}: this member holds no plan of epoch {header.epoch}",
                    rule="unknown-epoch",
                    round=header.round,
                    epoch=header.epoch,
                )
            while self._rounds.waits(header):
                self._progress.check()
                self._progress.changed.wait()
            current = self._rounds.of(header)
        try:
            current.take(header, received)
        except FrameError:
            raise
        except SyncError as error:  # the round can't be finished, which is no fault of the frame's sender
            self._progress.fail(error.located(current, round=current.number, epoch=current.epoch))

    def closed(self, peer: str, channel: int, error: str) -> None:
        """Count the end of a peer's connection. Only rounds that wait for this peer fail."""
        with self._progress.changed:
            self._connections.closed(peer, channel, error)
            lost = self._connections.gone.get(peer) if self._progress.failure is None else None
            self._progress.changed.notify_all()
        if lost and self._on_lost is not None:
            self._on_lost(Loss(peer, lost))
