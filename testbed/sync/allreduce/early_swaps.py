"""A member's part in plans that take force between rounds among all: what it promises, and, as a root, what it commits.

swap_agreement.py says why all members go by the same plan in each round.

From which round on a plan holds that need not wait for a round among all; at one member. Pure.

Members in groups meet in rounds among all alone, which agree on plans (see protocol.py), and between two of those may
lie many rounds. So the root of a new plan's first tree commits it in two phases as soon as the controller has told it
that all hold the plan, over connections that no round uses (see swap_commit.py):

    root      prepare k  -->  each member, itself too
                         <--  promise r: the newest round that it has begun; it begins none after r until it hears more
              commit k, s = 1 + the largest r  -->   rounds from s on go by k
              abort k    -->  somebody can't be had: it is as if nothing had been said

Invariant: round n goes by the newest of the plans that rounds among all before n agreed on, and that were committed
from a round of at most n on; every member knows all of those before it begins round n. A round among all tells all of
its members by its end. A commit has s > r at each member, and none begins a round after its r before it knows s. So
members go by one plan in each round, and in whatever groups that has they contribute to it once.

Nobody waits for ever: a promise is made at once, whatever rounds are on, and no frame can stand before it; a commit
waits for promises alone. So who waits to begin a round waits for messages, never for another round. The controller has
no part in it once the root has begun. Another plan that is prepared meanwhile takes nothing back that is promised:
both come into force, or the newer one alone, which a round among all may agree on first. A root that is lost ends the
run, as every member does where members are fixed, and those with groups always are.

What the root of a new plan and the others say to each other so that it takes force between rounds among all.

A connection of their own to where each member listens for its peers, on the channel for those who ask for something:

    prepare  epoch         -->        promise  epoch, newest round begun        <--
    commit   epoch, first round  or  abort  epoch  -->
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
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


class SwapAgreement:
    """What this member has promised, and what was committed; by epoch. No lock of its own."""

    def __init__(self) -> None:
        self._promises: dict[int, int] = {}
        self._lost: dict[int, str] = {}
        self._commits: dict[int, int] = {}

    @property
    def open(self) -> tuple[int, ...]:
        """The epochs that this member has promised and not heard of since."""
        return tuple(sorted(self._promises))

    def promise(self, epoch: int, begun: int) -> int:
        """Begin no round after `begun`, the newest one, until it is known from which on the plan of `epoch` holds; that
        number. FrameError when that was promised already."""
        if epoch in self._promises or epoch in self._commits:
            raise FrameError(f"epoch {epoch} is prepared a second time", rule="prepared-twice", epoch=epoch)
        self._promises[epoch] = begun
        return begun

    def commit(self, epoch: int, first: int) -> None:
        """Rounds from `first` on go by the plan of `epoch`. FrameError when that is not what was promised."""
        if (begun := self._promises.get(epoch)) is None or first <= begun:
            raise FrameError(
                f"epoch {epoch} is committed from round {first} on, and this member promised {begun}",
                rule="not-promised",
                epoch=epoch,
                round=first,
                given=begun,
            )
        del self._promises[epoch]
        self._commits[epoch] = first

    def abort(self, epoch: int) -> None:
        """The plan of `epoch` is not committed: its promise binds no more."""
        self._promises.pop(epoch, None)

    def lose(self, epoch: int, why: str) -> None:
        """Nobody will say any more what becomes of a promise; nothing where that was said."""
        if epoch in self._promises:
            self._lost[epoch] = why

    def may_begin(self, number: int) -> bool:
        """Whether no promise keeps this member from a round; SyncError when one will for ever."""
        binding = [epoch for epoch, begun in self._promises.items() if begun < number]
        for epoch in binding:
            if epoch in self._lost:
                raise SyncError(
                    f"round {number}: whether it goes by epoch {epoch} was not said: {self._lost[epoch]}",
                    rule="not-decided",
                    epoch=epoch,
                    round=number,
                )
        return not binding

    def epoch(self, number: int, agreed: int) -> int:
        """What a round goes by. `agreed`: the newest that rounds among all agreed on, or that was gone by already."""
        return max([agreed, *(epoch for epoch, first in self._commits.items() if first <= number)])

    def forget(self, agreed: int) -> None:
        """Rounds go by the plan of epoch `agreed` by now: nothing goes by an older one any more."""
        self._commits = {epoch: first for epoch, first in self._commits.items() if epoch > agreed}


_MESSAGE = struct.Struct("<BII")

#: A root waits no longer for a promise, which comes within a round trip of a connection that is there: others that have
#: promised wait for it. A link that fell to a tenth has queued a second or two.
PROMISE_S = 5.0


class SwapStep(IntEnum):
    """What is said; the numbers are none of what is fetched (see fetch.py)."""

    PREPARE = 16
    PROMISE = 17
    COMMIT = 18
    ABORT = 19


class SwapMessage(NamedTuple):
    """A step for the plan of `epoch`. `round` is the newest begun, for a promise, and the first by the plan, for a
    commit; else 0."""

    step: SwapStep
    epoch: int
    round: int = 0


class SwapPeer(Protocol):
    """Another member, as the root of a plan sees it. OSError and SyncError when it can't be reached."""

    def send(self, message: SwapMessage) -> None:
        """Tell it."""

    def receive(self) -> SwapMessage:
        """What it says; waits for it."""

    def close(self) -> None:
        """Nothing more is said."""


class SwapConnection:
    """A connection between the root of a plan and another member, either way."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        connection.settimeout(timeout_s)
        self._connection = connection

    def send(self, message: SwapMessage) -> None:
        self._connection.sendall(_MESSAGE.pack(*message))

    def receive(self) -> SwapMessage:
        raw = memoryview(bytearray(_MESSAGE.size))
        sockets.receive(self._connection, raw)
        step, epoch, number = _MESSAGE.unpack(raw)
        if step not in tuple(SwapStep):
            raise FrameError(f"no step of a swap: {step}", rule="unknown-step", given=step)
        return SwapMessage(SwapStep(step), epoch, number)

    def close(self) -> None:
        sockets.close_now(self._connection)


def connect(
    peer: str, address: tuple[str, int], settings: TransportSettings, given_up: threading.Event
) -> SwapConnection:
    """A connection to the member `peer`, which listens at `address`. OSError when there can be none in time."""
    greeting = Greeting(settings.member, FETCH)

    def greet(connection: socket.socket, deadline: float) -> socket.socket:
        return handshake.greet(connection, greeting, peer, settings, deadline, given_up.is_set)

    connection = sockets.connect(address, settings.timeout_s, given_up, settings.congestion, greet)
    return SwapConnection(connection, min(PROMISE_S, settings.timeout_s))


#: Connections that are opened at a time: of a thousand members some 30 at once, three round trips each.
MOST_OPENING = 32

log = logging.getLogger(__name__)


class EarlySwaps:
    """Of a group's member, whose plans and rounds these are. `connect` reaches another one of the `roster`.

    `begins`, `epoch`, `follow` and `awaited` are for who holds the lock of `progress`; any thread may call the rest.
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
        self._agreement = SwapAgreement()
        self._closed = threading.Event()
        self._peers: list[SwapPeer] = []

    # -- rounds --------------------------------------------------------------------------------------------------------

    def begins(self, number: int) -> bool:
        """Whether a round may begin, as far as promises go; SyncError when it never may."""
        return self._agreement.may_begin(number)

    def epoch(self, number: int, agreed: int) -> int:
        """What a round goes by, before which rounds among all agreed on `agreed`."""
        return self._agreement.epoch(number, agreed)

    def follow(self) -> None:
        """Let the plan in force be that of the next round, if none is on."""
        if self._rounds.number == self._rounds.finished:
            self._plans.advance(self.epoch(self._rounds.number + 1, self._plans.agreed))
            self._agreement.forget(self._plans.agreed)

    def awaited(self) -> str:
        """What this member waits for before it begins its next round, in words; empty if for nothing."""
        return ", ".join(f"a word on the plan of epoch {epoch}, which it promised" for epoch in self._agreement.open)

    # -- as any member -------------------------------------------------------------------------------------------------

    def promise(self, epoch: int) -> int:
        """Begin no round until there is word on a plan; the newest one that was begun. FrameError when the controller
        has told of no such plan."""
        with self._progress.changed:
            self._progress.check()
            if epoch not in self._plans and epoch >= self._plans.agreed:
                raise FrameError(f"epoch {epoch} is prepared, and not held", rule="unknown-epoch", epoch=epoch)
            return self._agreement.promise(epoch, self._rounds.number)

    def commit(self, epoch: int, first: int) -> None:
        """Rounds from `first` on go by a plan that was promised."""
        with self._progress.changed:
            self._agreement.commit(epoch, first)
            self.follow()
            self._progress.changed.notify_all()

    def abort(self, epoch: int) -> None:
        """A plan that was promised does not take force early."""
        with self._progress.changed:
            self._agreement.abort(epoch)
            self._progress.changed.notify_all()

    def serve(self, root: SwapPeer) -> None:
        """Do what a plan's root asks, up to its last word. SyncError when that is nothing that was to come."""
        try:
            step, epoch, _ = root.receive()
        except ConnectionError:  # it could not reach somebody, or a round among all came first
            return
        if step is SwapStep.ABORT:
            return
        if step is not SwapStep.PREPARE:
            raise FrameError(f"a swap that begins with {step.name.lower()}")
        begun = self.promise(epoch)
        try:
            root.send(SwapMessage(SwapStep.PROMISE, epoch, begun))
            step, said, first = root.receive()
            if said != epoch or step not in (SwapStep.COMMIT, SwapStep.ABORT):
                raise FrameError(f"{step.name.lower()} of epoch {said} after epoch {epoch} was promised")
            if step is SwapStep.COMMIT:
                self.commit(epoch, first)
            else:
                self.abort(epoch)
        except (OSError, SyncError) as error:
            self._lose(epoch, str(error))
            raise

    def _lose(self, epoch: int, why: str) -> None:
        with self._progress.changed:
            self._agreement.lose(epoch, why)
            self._progress.changed.notify_all()

    # -- as the root of a plan -----------------------------------------------------------------------------------------

    def confirm(self, epoch: int) -> Callable[[], None] | None:
        """All members hold the plan of an epoch: what commits it if that is for this member to do; it waits for others.

        Where all rounds are among all there is nothing to do. What members do between rounds, where plans say it, is
        agreed on in those alone: a member may be on its way to the next round already.
        """
        self._plans.confirm(epoch)
        plan, now = self._plans.get(epoch), self._plans.in_force
        if plan is None or epoch != self._plans.confirmed or epoch <= self._plans.agreed:
            return None
        if not now.groups or plan.training or plan.trees[0].root != self._member:
            return None
        return partial(self._commit_all, plan)

    def _commit_all(self, plan: Plan) -> None:
        """Commit a plan at all members; where one can't be had it waits for the next round among all."""
        peers: list[SwapPeer] = []
        try:
            self._open([member for member in plan.members if member != self._member], peers)
            if plan.epoch > self._plans.agreed:  # no round among all came first
                self._commit(plan.epoch, peers)
        except (OSError, SyncError) as error:
            log.warning("epoch %d is left to the next round among all: %s", plan.epoch, error)
        finally:
            self._close(peers)

    def _commit(self, epoch: int, peers: Collection[SwapPeer]) -> None:
        begun = [self.promise(epoch)]
        try:
            for peer in peers:
                peer.send(SwapMessage(SwapStep.PREPARE, epoch))
            begun += [_promised(peer, epoch) for peer in peers]
        except (OSError, SyncError):
            _tell(peers, SwapMessage(SwapStep.ABORT, epoch))
            self.abort(epoch)
            raise
        first = 1 + max(begun)
        _tell(peers, SwapMessage(SwapStep.COMMIT, epoch, first))
        self.commit(epoch, first)

    def _open(self, members: Collection[str], peers: list[SwapPeer]) -> None:
        """Connect to these members, before any of them promises something; into `peers`. The error where one can't be
        reached."""

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
        """Let go of who waits for other members here."""
        self._closed.set()
        with self._progress.changed:
            peers = tuple(self._peers)
        for peer in peers:
            peer.close()


def _promised(peer: SwapPeer, epoch: int) -> int:
    """The newest round that a member has begun, when it promises; FrameError when it says something else."""
    step, said, begun = peer.receive()
    if step is not SwapStep.PROMISE or said != epoch:
        raise FrameError(f"{step.name.lower()} of epoch {said} in place of a promise of epoch {epoch}")
    return begun


def _tell(peers: Collection[SwapPeer], message: SwapMessage) -> None:
    """Say the last word to all. One that is not reached finds that out itself, and ends."""
    for peer in peers:
        with suppress(OSError, SyncError):
            peer.send(message)
