"""From which round on a plan holds that need not wait for a round among all; at one member. Pure.

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
"""

from __future__ import annotations

from testbed.sync.errors import FrameError, SyncError


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
