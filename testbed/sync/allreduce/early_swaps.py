"""A member's part in plans that take force between rounds among all: what it promises, and, as a root, what it commits.

swap_agreement.py says why all members go by the same plan in each round.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from testbed.plan import Plan
from testbed.sync.allreduce.held_plans import HeldPlans
from testbed.sync.allreduce.round_progress import RoundProgress
from testbed.sync.allreduce.rounds import Rounds
from testbed.sync.allreduce.swap_agreement import SwapAgreement
from testbed.sync.allreduce.swap_commit import SwapMessage, SwapPeer, SwapStep, connect
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.transport import TransportSettings

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
