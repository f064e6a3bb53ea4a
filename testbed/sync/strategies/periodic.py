"""What algorithms with local steps have in common: a period of steps, and rounds of the model's fragments in it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from testbed.protocol import FragmentDrift
from testbed.sync.outer import Outer
from testbed.sync.strategies.strategy import Reducer, Steps, Strategy

if TYPE_CHECKING:
    from testbed.sync.strategies.drift import Loss
    from testbed.sync.strategies.fragment import Fragment

#: Of what a fragment's parameters have become while it was reduced they keep this share (streaming DiLoCo, arXiv
#: 2501.18512, section 2.3).
MIX = 0.5


class Periodic(Strategy):
    """Members begin with the same parameters and differ between rounds: `outer` takes the mean of what they changed
    since they agreed. Four times the parameters in memory, five where drift is measured.

    Under a plan with groups, rounds inside a group move its members to the group's mean, and the outer optimizer
    steps in the rounds among all: hierarchical local SGD, as GeoMX's HFA (H1 = the period's steps, H2 = H1 × the
    plan's period).

    Members that save a checkpoint do so after the same step: what is under way is taken in then.
    """

    def __init__(
        self,
        reducer: Reducer,
        fragments: Sequence[Fragment],
        outer: Outer,
        optimizer: Steps | None,
        weight: float,
    ) -> None:
        super().__init__(optimizer, weight)
        self._reducer = reducer
        self._fragments = fragments
        self._outer = outer
        self._scale = 1.0  # what a change counts
        self._steps = 0
        self._began = 0  # the step after which the period began that is on
        self.periods = 0  # that are over

    @abstractmethod
    def after_step(self) -> None:
        """Begin and finish the rounds whose step has come."""

    def over(self, rounds: int, taken: int) -> bool:
        return self.periods >= rounds

    @property
    def together(self) -> bool:
        return all(not its.under_way and its.agreed == self._steps for its in self._fragments)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """The parameters are those of the last round among all while inside."""
        with ExitStack() as stack:
            for fragment in self._fragments:
                stack.enter_context(fragment.shown())
            yield

    def hold(self) -> None:
        """Take the parameters as they are for agreed upon: all members have the same."""
        for fragment in self._fragments:
            fragment.hold()

    def watch(self, loss: Loss, every: int) -> None:
        from testbed.sync.strategies.drift import DriftMeter

        for number, fragment in enumerate(self._fragments):
            fragment.drift = DriftMeter(number, loss, every)

    def drift(self) -> tuple[FragmentDrift, ...]:
        found = [its for fragment in self._fragments if fragment.drift for its in fragment.drift.found]
        for fragment in self._fragments:
            if fragment.drift:
                fragment.drift.found.clear()
        return tuple(found)

    def settle(self) -> None:
        """Wait for what is under way, and synchronize what has changed since."""
        self._finish_all()
        while not self._settled():
            pass

    def state_dict(self) -> dict[str, Any]:
        """The anchors, outer momenta, residuals and the count of steps; what is under way is waited for first."""
        self._finish_all()
        fragments = [fragment.state_dict() for fragment in self._fragments]
        return {"steps": self._steps, "began": self._began, "periods": self.periods, "fragments": fragments}

    def handover(self) -> dict[str, Any]:
        """Nothing is owed yet by who begins. For a strategy without delay: nothing is under way between two steps."""
        state = self.state_dict()
        return {**state, "fragments": [{**its, "residual": None} for its in state["fragments"]]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._steps, self._began, self.periods = (int(state[name]) for name in ("steps", "began", "periods"))
        for fragment, its in zip(self._fragments, state["fragments"], strict=True):
            fragment.load_state_dict(its)

    def _begin(self, fragment: Fragment) -> None:
        """Send off what changed; what is under way of it is taken in first."""
        if fragment.under_way:
            self._finish(fragment)
        fragment.begin(self._reducer, self.weight, self._steps, self._scale)

    def _finish(self, fragment: Fragment) -> bool:
        """Take in what was reduced; what has not changed meanwhile goes all the way. Whether it is all members'."""
        return fragment.finish(self._outer, MIX if fragment.begun < self._steps else 0.0)

    def _end_period(self) -> None:
        self._began = self._steps
        self.periods += 1

    def _settled(self) -> bool:
        """Synchronize each fragment that not all members have yet; whether they have now. Groups may need several."""
        settled = True
        for fragment in self._fragments:
            if fragment.agreed < self._steps:
                self._begin(fragment)
                settled &= self._finish(fragment)
        return settled

    def _finish_all(self) -> None:
        for fragment in self._fragments:
            if fragment.under_way:
                self._finish(fragment)
