"""What a survivor does about a round that a member was lost in: the rule of atomic rounds (see atomic_rounds.py).

What any member holds final stays as it is, and others fetch it; what nobody holds is reduced again among those who are
left, each slice with its own denominator.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import torch

from testbed.sync.allreduce.atomic_rounds import RecoveryOrders
from testbed.sync.allreduce.attempt import Attempt, joined
from testbed.sync.allreduce.fetch import FetchRequest, MeansNote, Wanted, fetch
from testbed.sync.allreduce.group import AllReduceGroup, Roster
from testbed.sync.allreduce.receiver import Loss
from testbed.sync.allreduce.result import RoundResult, Tally
from testbed.sync.errors import SyncError

#: Elements fetched at a time: 1 MiB of float32.
PIECE = 256 * 1024

log = logging.getLogger(__name__)


class Unfetched(Exception):
    """What another member holds can't be had from it; `loss` says why."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.why)
        self.loss = loss


def recover(
    group: AllReduceGroup, roster: Roster, orders: RecoveryOrders | None, attempt: Attempt, guard: threading.Condition
) -> RoundResult:
    """Finish the round of an attempt that is not to begin anew, by `orders`. `guard` is held while the attempt changes.

    SyncError as a round of the group; Unfetched.
    """
    done = None
    if orders is not None and not attempt.whole:
        for peer, start, stop in orders.fetch:
            for at in range(start, stop, PIECE):
                _fetch(group, roster, peer, attempt, at, min(at + PIECE, stop), guard)
        if orders.left:
            with guard:
                packed, residual = attempt.pack(orders.left)
            done = group.begin(packed, attempt.weight, residual)()
            with guard:
                attempt.absorb(done.slices)
                attempt.again()
    log.info("%s: round %d recovered: %s", group.settings.member, attempt.number, attempt.slices)
    slices = joined(attempt.slices)
    if done is None:
        nothing = 0.0, 0.0, 0, 0
        return RoundResult(
            attempt.values, attempt.number, group.settings.generation, True, *nothing, slices=slices, tally=Tally()
        )
    return replace(done, tensor=attempt.values, round=attempt.number, slices=slices)


def _fetch(
    group: AllReduceGroup,
    roster: Roster,
    peer: str,
    attempt: Attempt,
    start: int,
    stop: int,
    guard: threading.Condition,
) -> None:
    settings = group.settings
    request = FetchRequest(Wanted.MEANS, settings.generation, attempt.number, start, stop)
    most = (stop - start) * attempt.values.element_size()
    try:
        answer = fetch(peer, roster[peer], settings, request, most)
        if not isinstance(answer.note, MeansNote) or len(answer.data) != most:
            raise SyncError(f"{len(answer.data)} bytes instead of the {most} of [{start}, {stop})")
    except (SyncError, KeyError) as error:  # KeyError: nobody said where that one listens
        why = f"round {attempt.number}, epoch {settings.generation}: {error}"
        raise Unfetched(Loss(peer, why)) from error
    means = torch.frombuffer(answer.data, dtype=attempt.values.dtype)
    with guard:
        attempt.put(start, means, answer.note.slices)
