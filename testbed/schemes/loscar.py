"""LOSCAR: SPARTA whose averages arrive while members take further steps, which are added to the averages.

    after step k         send y = x[i], for the indices i drawn from (seed, k), as SPARTA's
    after step k + d     x[i] ← m + (z − y)     m: the members' mean of y, z: x[i] at this moment

Without a delay z is y, and LOSCAR is SPARTA. The correction m − y adds up to 0 over the members, so the mean of all
members moves by their own steps alone. An index that is drawn again within the delay is moved to a mean twice, which
for a share of 0.005 happens to one in 200 of the values sent.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from testbed.schemes.options import limited
from testbed.schemes.scheme import Scheme
from testbed.schemes.sparta import RandomShare, ShareOptions, drawn
from testbed.schemes.training import RoundTraining
from testbed.sync import flat

if TYPE_CHECKING:
    import torch

    from testbed.sync.executor import Work


@dataclass(frozen=True)
class LoscarOptions(ShareOptions):
    """Options of LOSCAR."""

    #: Steps that a member takes while its share is averaged.
    delay: int = limited(1, ge=0)

    @property
    def overlaps(self) -> bool:
        """True if members take steps while a share is reduced (`delay`)."""
        return self.delay > 0


SCHEME = Scheme(
    name="loscar",
    options=LoscarOptions,
    exchange="all-reduce",
    planned=True,
    source="arXiv 2605.20866; second-hand",
)


class Shared(NamedTuple):
    """A share of the parameters whose average is under way."""

    step: int
    places: torch.Tensor
    #: The values as they were sent.
    sent: torch.Tensor
    #: The members' mean, once `work` is done.
    mean: torch.Tensor
    work: Work[Any]


class Loscar(RandomShare):
    """The strategy that averages a share of the parameters while the next steps are taken."""

    def __init__(self, training: RoundTraining, options: LoscarOptions) -> None:
        super().__init__(training, options)
        self._delay = options.delay
        self._under_way: deque[Shared] = deque()

    def after_step(self) -> None:
        """Apply the share that was sent `delay` steps ago, and send another."""
        self._steps += 1
        self._finish(self._steps - self._delay)
        values = self._gather()
        places = drawn(self._steps, self._count, values)
        sent = values[places]
        mean = sent.clone()
        work = self._reducer.allreduce(mean, self.weight, async_op=True)
        self._under_way.append(Shared(self._steps, places, sent, mean, work))
        if not self._delay:
            self._finish(self._steps)

    def settle(self) -> None:
        """Apply the shares under way, and average the whole model."""
        self._finish(self._steps)
        super().settle()

    def over(self, rounds: int, taken: int) -> bool:
        """Return whether `taken` steps make `rounds` rounds, of which the last is that of the whole model."""
        return taken > 0 and taken + 1 >= rounds

    def state_dict(self) -> dict[str, Any]:
        """Return the count of steps, after applying the shares under way."""
        self._finish(self._steps)
        return super().state_dict()

    def _finish(self, step: int) -> None:
        """Wait for the shares that were sent up to this step, and apply their averages to the parameters."""
        while self._under_way and self._under_way[0].step <= step:
            share = self._under_way.popleft()
            share.work.wait()
            values = self._gather()
            values[share.places] = share.mean + (values[share.places] - share.sent)
            flat.scatter(values, self._parameters)


def build(options: LoscarOptions, training: RoundTraining) -> Loscar:
    """Return the strategy for a member's model."""
    return Loscar(training, options)
