"""The CPN framework's hybrid hierarchical synchronization.

Each worker takes local steps by its speed; rounds are inside sites, and every few rounds among all.

Source: the CPN framework, JICN 2025, 10.64509/jicn.12.39, by our reading of its abstract.
FedNova: Wang et al. 2020, arXiv 2007.07481. FedProx: Li et al. 2020. DaSGD: Zhou et al. 2020, arXiv 2006.00441.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.schemes.assignment import Assignment, Setting, steps_of
from testbed.schemes.options import NESTEROV, LocalSteps, Misfit, OuterOptions, limited
from testbed.schemes.scheme import Scheme
from testbed.schemes.training import RoundTraining
from testbed.sync.strategies import Periodic

#: Returns the steps of a member's next round, and the ratio of their work to the members' mean work.
Due = Callable[[], tuple[int, float]]


@dataclass(frozen=True)
class HybridOptions(LocalSteps):
    """Options of the hybrid."""

    #: Each Nth round is among all members; a policy that makes groups (cpn, hips) has a period of its own.
    period: int = limited(4, ge=1)
    #: The outer optimizer, which applies the members' mean change to the model.
    outer: OuterOptions = NESTEROV
    #: The fraction by which each step returns to the parameters at the round's begin: ημ in FedProx.
    prox: float = limited(0.0, ge=0, lt=1)
    #: Divide each member's change by the work behind it (FedNova).
    normalise: bool = True
    #: Reduce a round while the next one's steps are taken (DaSGD).
    overlap: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overlap and self.prox:
            raise Misfit("prox", "a round that overlaps another has no one set of first parameters", "one of the two")

    @property
    def site_period(self) -> int:
        """The option `period`, N: each Nth round is among all members, the others are inside sites."""
        return self.period

    @property
    def overlaps(self) -> bool:
        """True if a round is reduced while the next one's steps are taken: the option `overlap`."""
        return self.overlap


SCHEME = Scheme(
    name="hybrid",
    options=HybridOptions,
    exchange="all-reduce",
    planned=True,
    source="the CPN framework, JICN 2025, 10.64509/jicn.12.39, by our reading",
)


def assign(options: HybridOptions, setting: Setting) -> Assignment:
    """Return for each member its local steps in a round (`every`) and those of all members (`steps`).

    They apply where a plan gives no steps.
    """
    each = steps_of(setting.view.members, options.every)
    own = {name: {"every": steps, "steps": each} for name, steps in zip(setting.view.names, each, strict=True)}
    return Assignment(own=own)


class Hybrid(Periodic):
    """Rounds with unequal numbers of local steps: before each round `due` says how many this member takes.

    Where members take unequal numbers of steps, each change is divided by the work behind it, as FedNova does, so that
    a member that does more does not count more. With `prox`, each step returns by that fraction to where the round
    began (FedProx: ημ).

    With `overlap` a round is reduced while the member takes the next round's steps, and the result is applied after
    these. The member's changes meanwhile are added to the result (DaSGD). No change is lost or counted twice, so
    members converge to the same point as without `overlap`. It then needs five times the parameters in memory.
    """

    def __init__(self, training: RoundTraining, options: HybridOptions, due: Due) -> None:
        from testbed.sync.strategies import Fragment

        self._fragment = Fragment(training.parameters, onward=options.overlap)
        super().__init__(training.reducer, [self._fragment], options.outer.optimizer, None, training.weight)
        self._prox = options.prox
        self._overlap = options.overlap
        self._due = due
        self._begin_period()

    def after_step(self) -> None:
        """Pull towards the last round's parameters, and begin a round after the period's steps."""
        self._steps += 1
        if self._prox:
            self._fragment.pull(self._prox)
        if self._steps == self._began + self._every:
            self._begin(self._fragment)
            if not self._overlap:
                self._finish(self._fragment)
            self._end_period()
            self._begin_period()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of any strategy with periods, and the steps and the factor of the present period."""
        return {**super().state_dict(), "every": self._every, "scale": self._scale}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`. The present plan's steps count from the next period on."""
        super().load_state_dict(state)
        if "every" in state:  # earlier versions kept neither
            self._every, self._scale = int(state["every"]), float(state["scale"])

    def _begin_period(self) -> None:
        self._every, count = self._due()
        if not count > 0:
            raise ValueError(f"the work behind a round's {self._every} steps is {count}; it must be above 0")
        self._scale = 1 / count


def build(options: HybridOptions, training: RoundTraining) -> Hybrid:
    """Return the CPN framework's hybrid strategy: unequal local steps, rounds inside sites, every few among all.

    The member's assignment has `every`, the local steps of a round for plans that have none, and `steps`, those of each
    member. Members of a user's loop have no assignment: both are the option `every` then, and of a plan's steps only
    their ratio to all members' mean counts.
    """
    every: int = training.assignment.get("every", options.every)
    each: Sequence[int] = training.assignment.get("steps", (every,)) if options.normalise else ()

    def due() -> tuple[int, float]:
        own, mean = training.steps(), training.mean_steps()
        count = own or every
        if own and mean and not training.assignment:
            count = max(round(every * own / mean), 1)
        return count, work(count, each, options.prox)

    return Hybrid(training, options, due)


def work(count: int, each: Sequence[int], prox: float) -> float:
    """Return the ratio of the work of `count` steps to the members' mean work, as lengths under a constant gradient.

    Args:
        count: The steps of one member.
        each: The steps with which each member begins; the mean is over these, so it is the same for all. Empty: changes
            are not normalised, and the ratio is 1.
        prox: See HybridOptions.
    """
    if not each:
        return 1.0
    lengths = [accumulated(steps, prox) for steps in each]
    return accumulated(count, prox) * len(lengths) / sum(lengths)


def accumulated(steps: int, prox: float = 0.0) -> float:
    """Return the length of `steps` local steps of size 1 under a constant gradient (FedNova's norm of a, section 4)."""
    distance = 0.0
    for _ in range(steps):
        distance = (distance + 1) * (1 - prox)
    return distance
