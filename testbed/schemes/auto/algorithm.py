"""Each member follows the plan's choice of a scheme, and hands its state over where all hold the same parameters.

gradients -> local steps    the parameters are the same: they are where all agreed. What a codec left out of a
                            gradient is forgotten: it is no change of parameters
local steps -> others       the same; what a codec left out stays, and of one scheme its outer momentum
local steps -> gradients    each member's optimizer has moments of its own, with which equal gradients would part
                            the members: one more local step, then parameters and moments by their mean, in one
                            round of all of it
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from testbed.plan import TrainingChoice
from testbed.protocol import FragmentDrift
from testbed.schemes import named
from testbed.schemes.auto import SCHEME, AutoOptions
from testbed.schemes.training import RoundTraining
from testbed.sync import flat
from testbed.sync.strategies import Periodic, Strategy
from testbed.sync.strategies.drift import Loss
from testbed.sync.strategies.strategy import Steps, check_whole

log = logging.getLogger(__name__)

#: What members begin with: it needs nothing to be known, and its rounds teach what the network carries.
FIRST = TrainingChoice("gradients")


class ChosenStrategy(Strategy):
    """The strategy that the plan in force names, and after each of its rounds among all another one, if that is another
    plan's choice."""

    def __init__(self, training: RoundTraining, optimizer: Steps | None = None) -> None:
        super().__init__(optimizer, training.weight)
        self._training = training
        self._watched: tuple[Loss, int] | None = None
        self._choice = training.chosen() or FIRST
        self._strategy = self._made(self._choice)
        self._drift: tuple[FragmentDrift, ...] = ()
        self._taken = 0
        self._together = 0  # the steps taken when all last held the same

    @property
    def choice(self) -> TrainingChoice:
        """How this member trains."""
        return self._choice

    def before_step(self) -> None:
        """Go over to what the plan in force says now, where all members hold the same."""
        if self._strategy.together:
            self._follow(self._training.chosen() or self._choice)
        self._strategy.weight = self.weight
        self._strategy.before_step()

    def after_step(self) -> None:
        """As the strategy in force has it."""
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
        return self._strategy.together

    def progress(self, rounds: int, taken: int) -> int:
        return self._together

    def over(self, rounds: int, taken: int) -> bool:
        return taken >= rounds

    def agreed(self) -> AbstractContextManager[None]:
        """As the strategy in force has it."""
        return self._strategy.agreed()

    def watch(self, loss: Loss, every: int) -> None:
        """The loss is asked for in merges as many steps apart."""
        self._watched = loss, every
        self._watch()

    def drift(self) -> tuple[FragmentDrift, ...]:
        found, self._drift = (*self._drift, *self._strategy.drift()), ()
        return found

    def state_dict(self) -> dict[str, Any]:
        """The choice, the count of steps and the state of the strategy in force."""
        choice = {"scheme": self._choice.scheme, "options": dict(self._choice.options)}
        counts = {"taken": self._taken, "together": self._together, "uniting": isinstance(self._strategy, Uniting)}
        return {**counts, "choice": choice, "strategy": self._strategy.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._choice = TrainingChoice(state["choice"]["scheme"], state["choice"]["options"])
        self._strategy = Uniting(self._training) if state["uniting"] else self._made(self._choice)
        self._strategy.load_state_dict(state["strategy"])
        self._taken, self._together = int(state["taken"]), int(state["together"])
        self._watch()

    def _follow(self, choice: TrainingChoice) -> None:
        """Go over to what is chosen; a united group has gradients before it, whatever is chosen meanwhile."""
        before, strategy = self._choice, self._strategy
        if choice == before and not isinstance(strategy, Uniting):
            return
        self._drift = self.drift()
        self._choice = choice
        unites = choice.scheme == FIRST.scheme and before.scheme != FIRST.scheme
        self._strategy = Uniting(self._training) if unites else self._made(choice)
        if isinstance(strategy, Periodic) and isinstance(self._strategy, Periodic):
            self._strategy.load_state_dict(_carried(strategy.state_dict(), before.scheme == choice.scheme))
        self._watch()
        log.info("after %d steps: %s in place of %s", self._taken, choice, before)

    def _made(self, choice: TrainingChoice) -> Strategy:
        scheme = named(choice.scheme)
        if scheme.exchange != "all-reduce" or scheme.name == SCHEME.name:
            raise ValueError(f"a plan chooses {choice.scheme}, which members that reduce in rounds can't go over to")
        made: Strategy = scheme.algorithm.build(scheme.read(choice.options), self._training)
        return made

    def _watch(self) -> None:
        if self._watched is not None:
            loss, every = self._watched
            self._strategy.watch(loss, max(1, every // self._choice.local_steps))


class Uniting(Strategy):
    """One step of each member's own, and then all parameters and moments are the members' mean, in one round."""

    def __init__(self, training: RoundTraining) -> None:
        super().__init__(None, training.weight)
        self._training = training

    @property
    def together(self) -> bool:
        return True

    def after_step(self) -> None:
        """Average it all. As it is: moments are not for codecs, which would owe each other's remainders."""
        tensors = [*self._training.parameters, *self._training.moments()]
        room = flat.gather(tensors, flat.room(tensors))
        check_whole(self._training.reducer.allreduce(room, self.weight))
        flat.scatter(room, tensors)

    def over(self, rounds: int, taken: int) -> bool:
        return taken >= rounds

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is nothing to go on from."""


def _carried(state: dict[str, Any], momentum: bool) -> dict[str, Any]:
    """What goes on of a scheme with local steps; another one's outer `momentum` does not."""
    if momentum:
        return state
    return {
        **state,
        "fragments": [{**its, "momentum": torch.zeros_like(its["momentum"])} for its in state["fragments"]],
    }


def build(options: AutoOptions, training: RoundTraining) -> Strategy:
    """The strategy for a member's model."""
    return ChosenStrategy(training)
