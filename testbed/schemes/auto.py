"""The scheme that the controller chooses, live: gradients, or local steps with their merge and codec.

Members begin with gradients. The plan of a round names the scheme that members follow from then on, so that a change of
scheme is a swap like any other. `docs/schemes.md` explains how the controller chooses. A member hands its state from
one scheme to the next when all members hold the same parameters:

gradients -> local steps    the parameters, on which all members agree. The codec's residual is dropped: it is a part
                            of gradients, not of changes of parameters
local steps -> others       the same, with the codec's residual, and with the outer momentum if the scheme stays.
                            SparseLoCo's residual stays with SparseLoCo: another scheme would send it all at once
local steps -> gradients    each member's optimizer has moments of its own, with which equal gradients would lead
                            members apart: one more local step, then the mean of all parameters and moments, in one
                            round
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from testbed.plan import TrainingChoice
from testbed.protocol import FragmentDrift
from testbed.schemes.options import Misfit, Options
from testbed.schemes.scheme import STEPS, Scheme
from testbed.schemes.training import RoundTraining
from testbed.sync import flat
from testbed.sync.strategies import Periodic, Strategy
from testbed.sync.strategies.strategy import check_whole

if TYPE_CHECKING:
    from testbed.sync.strategies.fragment import Loss

log = logging.getLogger(__name__)

#: The most local steps in a round, whatever is chosen.
MOST_STEPS = max(STEPS)

#: The first choice: it needs no knowledge, and its rounds show what the network carries.
FIRST = TrainingChoice("gradients")


@dataclass(frozen=True)
class AutoOptions(Options):
    """No options: the controller chooses. An experiment's `rounds` count steps here."""

    among_all = True  # some of the schemes to choose from need it

    @property
    def local_steps(self) -> int:
        """The most that the controller may choose, MOST_STEPS."""
        return MOST_STEPS

    def check_plan(self, policy: str, policy_options: Mapping[str, Any], codec: str) -> None:
        """Check as for any scheme, and refuse a codec: the controller chooses it."""
        super().check_plan(policy, policy_options, codec)
        if codec != "fp32":
            raise Misfit("codec", "the controller chooses it", "leave it out, or the `strategy` that is to have it")


SCHEME = Scheme(
    name="auto",
    options=AutoOptions,
    exchange="all-reduce",
    planned=True,
    conducted=True,
    source="ours: docs/schemes.md",
)


class ChosenStrategy(Strategy):
    """Runs the strategy that the plan in force names.

    After a round among all it changes to the strategy that the next plan names.
    """

    def __init__(self, training: RoundTraining) -> None:
        super().__init__(None, training.weight)
        self._training = training
        self._watched: tuple[Loss, int] | None = None
        self._choice = training.chosen() or FIRST
        self._strategy = self._made(self._choice)
        self._drift: tuple[FragmentDrift, ...] = ()
        self._taken = 0
        self._together = 0  # the steps taken when all members last held the same parameters

    @property
    def choice(self) -> TrainingChoice:
        """The scheme, with its options, that this member follows."""
        return self._choice

    def before_step(self) -> None:
        """Change to the choice of the plan in force, where all members hold the same parameters."""
        if self._strategy.together:
            self._follow(self._training.chosen() or self._choice)
        self._strategy.weight = self.weight
        self._strategy.before_step()

    def after_step(self) -> None:
        """Pass a step to the strategy in force, and count it."""
        self._strategy.after_step()
        self._taken += 1
        if self.together:
            self._together = self._taken

    def settle(self) -> None:
        """Synchronize what has changed since the last round."""
        self._strategy.settle()
        self._together = self._taken

    @property
    def together(self) -> bool:
        """True if all members hold the same parameters, by the strategy in force."""
        return self._strategy.together

    def progress(self, rounds: int, taken: int) -> int:
        """Return the steps that were taken when all members last held the same parameters."""
        return self._together

    def over(self, rounds: int, taken: int) -> bool:
        """Return whether the steps of the run are taken: `rounds` counts steps here."""
        return taken >= rounds

    def agreed(self) -> AbstractContextManager[None]:
        """Show the parameters that members last agreed on, by the strategy in force."""
        return self._strategy.agreed()

    def watch(self, loss: Loss, every: int) -> None:
        """Measure drift, and ask for the loss in one merge per `every` steps."""
        self._watched = loss, every
        self._watch()

    def drift(self) -> tuple[FragmentDrift, ...]:
        """Return the drift since the last call, under strategies before the one in force as well."""
        found, self._drift = (*self._drift, *self._strategy.drift()), ()
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the choice, the count of steps and the state of the strategy in force."""
        choice = {"scheme": self._choice.scheme, "options": dict(self._choice.options)}
        counts = {"taken": self._taken, "together": self._together, "uniting": isinstance(self._strategy, Uniting)}
        return {**counts, "choice": choice, "strategy": self._strategy.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`."""
        self._choice = TrainingChoice(state["choice"]["scheme"], state["choice"]["options"])
        self._strategy = Uniting(self._training) if state["uniting"] else self._made(self._choice)
        self._strategy.load_state_dict(state["strategy"])
        self._taken, self._together = int(state["taken"]), int(state["together"])
        self._watch()

    def _follow(self, choice: TrainingChoice) -> None:
        """Run the strategy of a choice from now on. Nothing changes if it runs already.

        A change to synchronous SGD first runs `Uniting` for one step, which makes all members' parameters equal. When
        the same choice comes again, its own strategy replaces `Uniting`.
        """
        before, strategy = self._choice, self._strategy
        if choice == before and not isinstance(strategy, Uniting):
            return
        self._drift = self.drift()
        self._choice = choice
        unites = choice.scheme == FIRST.scheme and before.scheme != FIRST.scheme
        self._strategy = Uniting(self._training) if unites else self._made(choice)
        stays = choice.scheme == before.scheme
        if isinstance(strategy, Periodic) and isinstance(self._strategy, Periodic):
            self._strategy.load_state_dict(_carried(strategy.state_dict(), stays))
        elif stays and type(strategy) is type(self._strategy):
            self._strategy.load_state_dict(strategy.state_dict())
        self._watch()
        log.info("after %d steps: %s in place of %s", self._taken, choice, before)

    def _made(self, choice: TrainingChoice) -> Strategy:
        from testbed.schemes import named

        scheme = named(choice.scheme)
        if scheme.exchange != "all-reduce" or scheme.name == SCHEME.name:
            raise ValueError(f"a plan chooses {choice.scheme}, which members that reduce in rounds can't change to")
        own = {} if scheme.traits is None else scheme.traits.options
        made: Strategy = scheme.algorithm.build(scheme.read({**own, **choice.options}), self._training)
        return made

    def _watch(self) -> None:
        if self._watched is not None:
            loss, every = self._watched
            self._strategy.watch(loss, max(1, every // self._choice.local_steps))


class Uniting(Strategy):
    """One local step of each member, and then one round that makes all parameters and moments the members' mean."""

    def __init__(self, training: RoundTraining) -> None:
        super().__init__(None, training.weight)
        self._training = training

    @property
    def together(self) -> bool:
        """True: the only round makes all members hold the same parameters and moments."""
        return True

    def after_step(self) -> None:
        """Average parameters and moments, without a residual.

        Codecs are not for moments, and a residual would mix the errors of parameters and moments.
        """
        tensors = [*self._training.parameters, *self._training.moments()]
        room = flat.gather(tensors)
        check_whole(self._training.reducer.allreduce(room, self.weight))
        flat.scatter(room, tensors)

    def over(self, rounds: int, taken: int) -> bool:
        """Return whether the steps of the run are taken."""
        return taken >= rounds

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: there is no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: there is no state."""


def _carried(state: dict[str, Any], momentum: bool) -> dict[str, Any]:
    """Return the part of a Periodic strategy's state that the next one takes over.

    Without `momentum`, outer momenta are zeros.
    """
    if momentum:
        return state
    fragments = [{**its, "momentum": its["momentum"].new_zeros(its["momentum"].shape)} for its in state["fragments"]]
    return {**state, "fragments": fragments}


def build(options: AutoOptions, training: RoundTraining) -> Strategy:
    """Return the strategy for a member's model."""
    return ChosenStrategy(training)
