"""The CPN framework's hybrid around a loop's steps: unequally many of them, evened out, held back or overlapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from testbed.schemes.hybrid import HybridOptions
from testbed.schemes.staggered.rules import accumulated
from testbed.schemes.training import RoundTraining
from testbed.sync import Nesterov
from testbed.sync.strategies import Fragment, Periodic
from testbed.sync.strategies.strategy import Steps

#: How many steps a member's next round has, and how many times the members' mean work they are.
Due = Callable[[], tuple[int, float]]


class Hybrid(Periodic):
    """Each round has as many steps of this member as `due` says before it.

    Where members take unequally many, what they changed is divided by the work behind it, as FedNova does (Wang et al.
    2020, arXiv 2007.07481), so that a member that does more does not count more. With `prox`, each step goes that part
    of the way back to where the round began (FedProx, Li et al. 2020: ημ).

    With `overlap` each round goes on beside the steps of the next one, for as long as they take at least; what the
    member has changed meanwhile is then added to where it leads (DaSGD, Zhou et al. 2020, arXiv 2006.00441). Nothing is
    lost or counted twice, so the members settle where they would without. Five times the parameters in memory then.
    """

    def __init__(
        self, training: RoundTraining, options: HybridOptions, due: Due, optimizer: Steps | None = None
    ) -> None:
        self._fragment = Fragment(training.parameters, onward=options.overlap)
        outer = Nesterov(options.outer.learning_rate, options.outer.momentum)
        super().__init__(training.reducer, [self._fragment], outer, optimizer, training.weight)
        self._prox = options.prox
        self._overlap = options.overlap
        self._due = due
        self._begin_period()

    def after_step(self) -> None:
        self._steps += 1
        if self._prox:
            self._fragment.pull(self._prox)
        if self._steps == self._began + self._every:
            self._begin(self._fragment)
            if not self._overlap:
                self._finish(self._fragment)
            self._end_period()
            self._begin_period()

    def _begin_period(self) -> None:
        self._every, count = self._due()
        if not count > 0:
            raise ValueError(f"the work behind a round's {self._every} steps is {count}; it must be above 0")
        self._scale = 1 / count


def build(options: HybridOptions, training: RoundTraining) -> Hybrid:
    """The strategy for a member's model. Its assignment has `every`, the local steps of a round if the plan has none,
    and `steps`, those of each member."""
    every: int = training.assignment.get("every", options.every)
    each: Sequence[int] = training.assignment.get("steps", ()) if options.normalise else ()

    def due() -> tuple[int, float]:
        count = training.steps() or every
        return count, work(count, each, options.prox)

    return Hybrid(training, options, due)


def work(count: int, each: Sequence[int], prox: float) -> float:
    """How many times the members' mean work `count` steps are, in length under a constant gradient, where the members
    begin with `each` so many; 1 if all count as they are. The mean is the same for all, whatever each takes."""
    if not each:
        return 1.0
    lengths = [accumulated(steps, prox=prox) for steps in each]
    return accumulated(count, prox=prox) * len(lengths) / sum(lengths)
