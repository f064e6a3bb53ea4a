"""The CPN framework's hybrid around a loop's steps."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.schemes.hybrid import HybridOptions
from testbed.schemes.staggered.rules import accumulated
from testbed.schemes.training import RoundTraining
from testbed.sync import Nesterov
from testbed.sync.strategies import LocalSgd, Strategy


def build(options: HybridOptions, training: RoundTraining) -> Strategy:
    """The strategy for a member's model. Its assignment has `every`, the local steps of a round if the plan has none,
    and `steps`, those of each member."""
    every: int = training.assignment.get("every", options.every)
    each: Sequence[int] = training.assignment.get("steps", ()) if options.normalise else ()

    def due() -> tuple[int, float]:
        count = training.steps() or every
        return count, work(count, each, options.prox)

    return LocalSgd(
        training.reducer,
        training.parameters,
        outer=Nesterov(options.outer.learning_rate, options.outer.momentum),
        weight=training.weight,
        prox=options.prox,
        overlap=options.overlap,
        due=due,
    )


def work(count: int, each: Sequence[int], prox: float) -> float:
    """How many times the members' mean work `count` steps are, in length under a constant gradient, where the members
    begin with `each` so many; 1 if all count as they are. The mean is the same for all, whatever each takes."""
    if not each:
        return 1.0
    lengths = [accumulated(steps, prox=prox) for steps in each]
    return accumulated(count, prox=prox) * len(lengths) / sum(lengths)
