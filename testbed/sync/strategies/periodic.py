"""The base class of algorithms with local steps: in each period every fragment has a round; and outer optimizers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from testbed.protocol import FragmentDrift
from testbed.sync.strategies.strategy import Reducer, Strategy

if TYPE_CHECKING:
    import torch

    from testbed.sync.strategies.fragment import Fragment, Loss


class Outer(Protocol):
    """An outer optimizer: moves the parameters that all members agree on, by the mean of the members' changes."""

    def step(self, values: torch.Tensor, change: torch.Tensor, momentum: torch.Tensor) -> None:
        """Move `values` by one step, in place.

        Args:
            values: The agreed values, flat float32.
            change: The members' mean change, before minus after, so that it points like a gradient; same shape.
            momentum: The outer optimizer's own state; same shape, zeros before the first step.
        """


@dataclass(frozen=True, slots=True)
class Average:
    """Takes the mean of the members' parameters: local SGD (Stich 2019)."""

    def step(self, values: torch.Tensor, change: torch.Tensor, momentum: torch.Tensor) -> None:
        """Step by x ← x − Δ."""
        values.sub_(change)


@dataclass(frozen=True, slots=True)
class Nesterov:
    """SGD with Nesterov momentum on the mean change: DiLoCo (Douillard et al. 2023, algorithm 1), as in torch.optim."""

    #: The learning rate, above 0.
    learning_rate: float = 0.7
    #: The momentum μ, in [0, 1).
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < inf or not 0 <= self.momentum < 1:
            raise ValueError(f"{self}: the learning rate must be finite and above 0, the momentum from 0 to below 1")

    def step(self, values: torch.Tensor, change: torch.Tensor, momentum: torch.Tensor) -> None:
        """Step by m ← μm + Δ, x ← x − lr·(Δ + μm)."""
        momentum.mul_(self.momentum).add_(change)
        values.sub_(change.add(momentum, alpha=self.momentum), alpha=self.learning_rate)


#: The fraction of their current values that a fragment's parameters keep, where steps were taken while it was reduced
#: (streaming DiLoCo, arXiv 2501.18512, section 2.3).
MIX = 0.5


class Periodic(Strategy):
    """Members take steps alone, and an outer optimizer steps by the mean of their changes since they last agreed.

    Takes four times the parameters in memory, five where drift is measured.

    Under a plan with groups, rounds inside a group move its members to the group's mean, and the outer optimizer steps
    in global rounds: hierarchical local SGD, as GeoMX's HFA (H1 = the period's steps, H2 = H1 × the plan's period).

    All members save a checkpoint after the same step, because saving waits for the rounds under way.

    Args:
        reducer: The session.
        fragments: The parts of the model.
        outer: The outer optimizer.
        optimizer: The optimizer whose steps count, or None if the loop calls `after_step` itself.
        weight: This member's weight in the mean.

    Attributes:
        periods: The number of completed periods.
    """

    def __init__(
        self,
        reducer: Reducer,
        fragments: Sequence[Fragment],
        outer: Outer,
        optimizer: torch.optim.Optimizer | None,
        weight: float,
    ) -> None:
        super().__init__(optimizer, weight)
        self._reducer = reducer
        self._fragments = fragments
        self._outer = outer
        self._scale = 1.0  # the factor on changes since the last round
        self._steps = 0
        self._began = 0  # the step after which the current period began
        self.periods = 0

    @abstractmethod
    def after_step(self) -> None:
        """Begin and finish the rounds that are due at this step."""

    def over(self, rounds: int, taken: int) -> bool:
        """Return whether training may end: `rounds` periods of steps are over."""
        return self.periods >= rounds

    @property
    def together(self) -> bool:
        """True if no round is under way, and all fragments were synchronized after the last step."""
        return all(not its.under_way and its.agreed == self._steps for its in self._fragments)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Set the parameters to those of the last global round inside the context."""
        with ExitStack() as stack:
            for fragment in self._fragments:
                stack.enter_context(fragment.at_anchor())
            yield

    def set_anchor(self) -> None:
        """Take the current parameters, which all members hold, as the anchor."""
        for fragment in self._fragments:
            fragment.set_anchor()

    def watch(self, loss: Loss, every: int) -> None:
        """Measure the drift of each fragment from now on; see Strategy."""
        from testbed.sync.strategies.fragment import DriftMeter

        for number, fragment in enumerate(self._fragments):
            fragment.drift = DriftMeter(number, loss, every)

    def drift(self) -> tuple[FragmentDrift, ...]:
        """Return the drift measured in the global rounds since the last call, by fragment."""
        found = [its for fragment in self._fragments if fragment.drift for its in fragment.drift.found]
        for fragment in self._fragments:
            if fragment.drift:
                fragment.drift.found.clear()
        return tuple(found)

    def settle(self) -> None:
        """Wait for the rounds under way, and synchronize all later changes.

        Under a plan with groups a fragment may take several rounds.
        """
        self._finish_all()
        while behind := [fragment for fragment in self._fragments if fragment.agreed < self._steps]:
            for fragment in behind:
                self._begin(fragment)
                self._finish(fragment)

    def state_dict(self) -> dict[str, Any]:
        """Wait for the rounds under way, and return the anchors, outer momenta, residuals and counts of steps."""
        self._finish_all()
        fragments = [fragment.state_dict() for fragment in self._fragments]
        return {"steps": self._steps, "began": self._began, "periods": self.periods, "fragments": fragments}

    def handover(self) -> dict[str, Any]:
        """Return the state for a member that joins, which starts without residuals.

        Only for strategies without delay, which have no round under way between two steps.
        """
        state = self.state_dict()
        return {**state, "fragments": [{**its, "residual": None} for its in state["fragments"]]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._steps, self._began, self.periods = (int(state[name]) for name in ("steps", "began", "periods"))
        for fragment, its in zip(self._fragments, state["fragments"], strict=True):
            fragment.load_state_dict(its)

    def _begin(self, fragment: Fragment) -> None:
        if fragment.under_way:
            self._finish(fragment)
        fragment.begin(self._reducer, self.weight, self._steps, self._scale)

    def _finish(self, fragment: Fragment) -> None:
        """Finish a fragment's reduction, mixed with its current values if steps were taken meanwhile; see Fragment."""
        fragment.finish(self._outer, MIX if fragment.begun < self._steps else 0.0)

    def _end_period(self) -> None:
        self._began = self._steps
        self.periods += 1

    def _finish_all(self) -> None:
        for fragment in self._fragments:
            if fragment.under_way:
                self._finish(fragment)
