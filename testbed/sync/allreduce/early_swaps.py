"""Early commit: a plan comes into force between two rounds among all members.

Different groups reduce together only in rounds among all, which agree on plans (see protocol.py); many rounds may lie
between two of those. So the root of a new plan's first tree commits the plan in two phases, as soon as the controller
has told the root that all members hold the plan. For each commit the root opens a connection to each other member, to
the address at which that member listens for its peers, on the channel for requests:

    root      prepare k  -->  each member, the root included
                         <--  promise r: the newest round that it has begun; it begins none after r until it hears more
              commit k, s = 1 + the largest r  -->   rounds from s on use plan k
              abort k    -->  some member can't be reached: the plan waits for the next round among all

Invariant: round n uses the newest of the plans that rounds among all before n agreed on and of those that were
committed from a round of at most n on; every member knows all of these before it begins round n. A round among all
tells all of its members by its end. A commit has s > r at each member, and no member begins a round after its r before
it knows s. So members use one plan in each round, and contribute once to it, in whatever groups the plan has.

No member waits forever. A promise is made at once, whatever rounds are running, and no frame can be queued before it;
a commit waits for promises alone. So a member that waits to begin a round waits for messages, never for another round.
The controller takes no part once the root has begun. A promise stays valid when another plan is prepared meanwhile:
both plans come into force, or only the newer one, if a round among all agrees on it first. The loss of the root ends
the run, like the loss of any member of a fixed group; runs with groups always have fixed members.
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import IntEnum
from functools import partial
from typing import NamedTuple, Protocol

from testbed.plan import Plan
from testbed.sync.allreduce.held_plans import HeldPlans
from testbed.sync.allreduce.rounds import RoundProgress, Rounds
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.transport import Greeting, TransportSettings, handshake, sockets
from testbed.sync.transport.frame import FETCH

log = logging.getLogger(__name__)


class SwapAgreement:
    """This member's promises and the commits that it knows, by epoch. No I/O; the caller holds the group's lock."""

    def __init__(self) -> None:
        self._promises: dict[int, int] = {}
        self._lost: dict[int, str] = {}
        self._commits: dict[int, int] = {}

    @property
    def pending(self) -> str:
        """The decisions that this member's next round waits for, in words; empty if there are none."""
        return ", ".join(f"the commit decision on the plan of epoch {epoch}" for epoch in sorted(self._promises))

    def promise(self, epoch: int, begun: int) -> int:
        """Promise to begin no round after `begun`, the newest one, before the decision on `epoch`. Returns `begun`.

        Raises:
            FrameError: The epoch was prepared before.
        """
        if epoch in self._promises or epoch in self._commits:
            raise FrameError(f"the plan of epoch {epoch} is prepared a second time", rule="prepared-twice", epoch=epoch)
        self._promises[epoch] = begun
        return begun

    def commit(self, epoch: int, first: int) -> None:
        """Record that rounds from `first` on use the plan of `epoch`.

        Raises:
            FrameError: The commit breaks the promise.
        """
        if (begun := self._promises.get(epoch)) is None or first <= begun:
            promise = "gave no promise" if begun is None else f"promised it for rounds after {begun}"
            raise FrameError(
                f"the plan of epoch {epoch} is committed from round {first} on, but this member {promise}",
                rule="not-promised",
                epoch=epoch,
                round=first,
                given=begun,
            )
        del self._promises[epoch]
        self._commits[epoch] = first

    def abort(self, epoch: int) -> None:
        """Release the promise for `epoch`."""
        self._promises.pop(epoch, None)

    def lose(self, epoch: int, why: str) -> None:
        """Record that no decision on `epoch` will come any more. No effect if the decision came already."""
        if epoch in self._promises:
            self._lost[epoch] = why

    def may_begin(self, number: int) -> bool:
        """Return whether no promise forbids round `number`. Raises SyncError if a promise forbids it for good."""
        binding = [epoch for epoch, begun in self._promises.items() if begun < number]
        for epoch in binding:
            if epoch in self._lost:
                raise SyncError(
                    f"round {number}: the commit decision on epoch {epoch} was lost: {self._lost[epoch]}",
                    rule="not-decided",
                    epoch=epoch,
                    round=number,
                )
        return not binding

    def epoch(self, number: int, agreed: int) -> int:
        """Return the epoch that round `number` uses, if earlier rounds used or agreed on `agreed`."""
        return max([agreed, *(epoch for epoch, first in self._commits.items() if first <= number)])

    def forget(self, agreed: int) -> None:
        """Drop commits that are no newer than the epoch `agreed`, which rounds use by now."""
        self._commits = {epoch: first for epoch, first in self._commits.items() if epoch > agreed}


_MESSAGE = struct.Struct("<BII")

#: The longest wait of a root for a promise, in seconds. Members that have promised wait meanwhile. A promise takes one
#: round trip; a link that fell to a tenth of its rate has queued a second or two.
PROMISE_S = 5.0


class SwapStep(IntEnum):
    """The kind of a message. The numbers differ from those of fetch.Wanted, which share the channel."""

    PREPARE = 16
    PROMISE = 17
    COMMIT = 18
    ABORT = 19


class SwapMessage(NamedTuple):
    """A step of the early commit of plan `epoch`."""

    step: SwapStep
    epoch: int
    #: For a promise the newest round begun, for a commit the first round with the plan.
    round: int = 0


class SwapPeer(Protocol):
    """A connection to another member. Methods raise OSError and SyncError if the member can't be reached."""

    def send(self, message: SwapMessage) -> None:
        """Send a message."""

    def receive(self) -> SwapMessage:
        """Wait for a message."""

    def close(self) -> None:
        """Close the connection."""


class SwapConnection:
    """A SwapPeer over a socket, on either side."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        connection.settimeout(timeout_s)
        self._connection = connection

    def send(self, message: SwapMessage) -> None:
        """Send a message."""
        self._connection.sendall(_MESSAGE.pack(*message))

    def receive(self) -> SwapMessage:
        """Wait for a message, up to the timeout."""
        raw = memoryview(bytearray(_MESSAGE.size))
        sockets.receive(self._connection, raw)
        step, epoch, number = _MESSAGE.unpack(raw)
        if step not in tuple(SwapStep):
            raise FrameError(f"unknown step of an early commit: {step}", rule="unknown-step", given=step)
        return SwapMessage(SwapStep(step), epoch, number)

    def close(self) -> None:
        """Close the connection at once."""
        sockets.close_now(self._connection)


def connect(
    peer: str, address: tuple[str, int], settings: TransportSettings, given_up: threading.Event
) -> SwapConnection:
    """Connect to the member `peer` at `address`, to agree when a plan comes into force early, between two rounds.

    Raises:
        OSError: The peer can't be reached within the settings' timeout, or `given_up` was set.
    """
    greeting = Greeting(settings.member, FETCH)

    def greet(connection: socket.socket, deadline: float) -> socket.socket:
        return handshake.greet(connection, greeting, peer, settings, deadline, given_up.is_set)

    connection = sockets.connect(address, settings.timeout_s, given_up, settings.congestion, greet)
    return SwapConnection(connection, min(PROMISE_S, settings.timeout_s))


#: The number of connections opened at a time: a thousand members take about 30 times three round trips.
MOST_OPENING = 32


class EarlySwaps:
    """A member's part in early commits: it promises, and as the root of a plan it commits.

    `connect` reaches another member. Callers of `follow` and the agreement hold the lock of `progress`; any thread may
    call the other methods.
    """

    def __init__(
        self,
        settings: TransportSettings,
        roster: Mapping[str, tuple[str, int]],
        plans: HeldPlans,
        rounds: Rounds,
        progress: RoundProgress,
    ) -> None:
        self.connect: Callable[[str, threading.Event], SwapPeer] = lambda peer, given_up: connect(
            peer, roster[peer], settings, given_up
        )
        self._member = settings.member
        self._plans = plans
        self._rounds = rounds
        self._progress = progress
        self.agreement = SwapAgreement()
        self._closed = threading.Event()
        self._peers: list[SwapPeer] = []

    # -- rounds --------------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Make the plan of the next round the one in force, unless a round is running."""
        if self._rounds.number == self._rounds.finished:
            self._plans.advance(self.agreement.epoch(self._rounds.number + 1, self._plans.agreed))
            self.agreement.forget(self._plans.agreed)

    # -- as any member -------------------------------------------------------------------------------------------------

    def promise(self, epoch: int) -> int:
        """Promise to begin no round before the decision on `epoch`. Returns the newest round that was begun.

        Raises:
            FrameError: The controller announced no such plan.
        """
        with self._progress.changed:
            self._progress.check()
            if epoch not in self._plans and epoch >= self._plans.agreed:
                raise FrameError(
                    f"this member was asked for a promise on the plan of epoch {epoch}, which the controller has not "
                    "announced to it",
                    rule="unknown-epoch",
                    epoch=epoch,
                )
            return self.agreement.promise(epoch, self._rounds.number)

    def commit(self, epoch: int, first: int) -> None:
        """Use a promised plan in rounds from `first` on."""
        with self._progress.changed:
            self.agreement.commit(epoch, first)
            self.follow()
            self._progress.changed.notify_all()

    def abort(self, epoch: int) -> None:
        """Release a promise: the plan does not come into force early."""
        with self._progress.changed:
            self.agreement.abort(epoch)
            self._progress.changed.notify_all()

    def serve(self, root: SwapPeer) -> None:
        """Answer the root of a plan, up to its decision.

        Raises:
            SyncError: The root's messages are out of order.
            OSError: The connection broke after the promise.
        """
        try:
            step, epoch, _ = root.receive()
        except ConnectionError:  # the root could not reach some member, or a round among all came first
            return
        if step is SwapStep.ABORT:
            return
        if step is not SwapStep.PREPARE:
            raise FrameError(f"an early commit began with {step.name.lower()} instead of prepare")
        begun = self.promise(epoch)
        try:
            root.send(SwapMessage(SwapStep.PROMISE, epoch, begun))
            step, answered, first = root.receive()
            if answered != epoch or step not in (SwapStep.COMMIT, SwapStep.ABORT):
                raise FrameError(
                    f"this member promised to swap to the plan of epoch {epoch}, and the plan's root answered with "
                    f"{step.name.lower()} of epoch {answered} instead of commit or abort of epoch {epoch}"
                )
            if step is SwapStep.COMMIT:
                self.commit(epoch, first)
            else:
                self.abort(epoch)
        except (OSError, SyncError) as error:
            with self._progress.changed:
                self.agreement.lose(epoch, str(error))
                self._progress.changed.notify_all()
            raise

    # -- as the root of a plan -----------------------------------------------------------------------------------------

    def confirm(self, epoch: int) -> Callable[[], None] | None:
        """Record that all members hold the plan of `epoch`.

        Early commits are for plans that replace a plan with groups: without groups all rounds are among all. A plan
        that also says how members train between rounds waits for a round among all, because a member may already be
        taking the steps before its next round.

        Returns:
            A function that commits the plan and waits for other members, or None if that is not this member's task.
        """
        self._plans.confirm(epoch)
        plan, now = self._plans.get(epoch), self._plans.in_force
        if plan is None or epoch != self._plans.confirmed or epoch <= self._plans.agreed:
            return None
        if not now.groups or plan.training or plan.trees[0].root != self._member:
            return None
        return partial(self._commit_all, plan)

    def _commit_all(self, plan: Plan) -> None:
        """Commit a plan at all members. If one can't be reached, the plan waits for the next round among all."""
        peers: list[SwapPeer] = []
        try:
            self._open([member for member in plan.members if member != self._member], peers)
            if plan.epoch > self._plans.agreed:  # no round among all came first
                self._commit(plan.epoch, peers)
        except (OSError, SyncError) as error:
            log.warning("epoch %d waits for the next round among all: %s", plan.epoch, error)
        finally:
            self._close(peers)

    def _commit(self, epoch: int, peers: Collection[SwapPeer]) -> None:
        begun, unread = [self.promise(epoch)], deque(peers)
        try:
            for peer in peers:
                peer.send(SwapMessage(SwapStep.PREPARE, epoch))
            while unread:
                begun.append(_promised(unread[0], epoch))
                unread.popleft()
        except (OSError, SyncError):
            _tell(peers, SwapMessage(SwapStep.ABORT, epoch))
            self.abort(epoch)
            for peer in unread:  # closing a socket with unread data resets it, and a lost abort is not sent again
                with suppress(OSError, SyncError):
                    peer.receive()
            raise
        first = 1 + max(begun)
        _tell(peers, SwapMessage(SwapStep.COMMIT, epoch, first))
        self.commit(epoch, first)

    def _open(self, members: Collection[str], peers: list[SwapPeer]) -> None:
        """Connect to members, before any of them promises anything. Adds the connections to `peers`.

        Raises:
            SyncError, OSError: Some member can't be reached.
        """

        def reach(member: str) -> None:
            peer = self.connect(member, self._closed)
            with self._progress.changed:
                peers.append(peer)
                self._peers.append(peer)
            if self._closed.is_set():
                raise SyncError("the session is closed")

        if members:
            with ThreadPoolExecutor(min(len(members), MOST_OPENING), thread_name_prefix="swap") as pool:
                list(pool.map(reach, members))

    def _close(self, peers: Collection[SwapPeer]) -> None:
        for peer in peers:
            peer.close()
        with self._progress.changed:
            self._peers = [peer for peer in self._peers if peer not in peers]

    def close(self) -> None:
        """Close all connections, so that no thread waits here any more."""
        self._closed.set()
        with self._progress.changed:
            peers = tuple(self._peers)
        for peer in peers:
            peer.close()


def _promised(peer: SwapPeer, epoch: int) -> int:
    """Return the newest round that a member has begun, as it promises. Raises FrameError for any other message."""
    step, answered, begun = peer.receive()
    if step is not SwapStep.PROMISE or answered != epoch:
        raise FrameError(
            f"a member answered with {step.name.lower()} of epoch {answered} instead of a promise of epoch {epoch}"
        )
    return begun


def _tell(peers: Collection[SwapPeer], message: SwapMessage) -> None:
    """Send the decision to all members. A member that can't be reached notices the broken connection, and fails."""
    for peer in peers:
        with suppress(OSError, SyncError):
            peer.send(message)
