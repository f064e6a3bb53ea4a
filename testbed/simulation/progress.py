"""How far a member is: what it does takes its time, and rounds that are over are told of at the ends of steps.

A member that goes on beside a round begins the next one once the one before is over for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from testbed.plan import Plan
from testbed.protocol import FragmentDrift
from testbed.simulation.activity import Activity, AwaitRound, ComputeStep, EndStep
from testbed.simulation.compute import DeclaredCompute
from testbed.simulation.round_model import SimulatedRound


@dataclass(frozen=True, slots=True)
class RoundOver:
    """A round of a number under a plan."""

    number: int
    plan: Plan
    done: SimulatedRound


@dataclass(frozen=True, slots=True)
class StepsTaken:
    """What a member says of the steps before a round: the seconds that they took, what they came to."""

    seconds: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    drift: tuple[FragmentDrift, ...] = ()


NO_STEPS = StepsTaken()


@dataclass(frozen=True, slots=True)
class ToldOver:
    """At a moment (seconds after training began) a member tells of rounds, and of the steps before the last of them."""

    at_s: float
    rounds: tuple[RoundOver, ...]
    steps: StepsTaken


class MemberProgress:
    """A member's: it is `at_s` seconds after training began, and begins the round that it asked for at `begins_s`."""

    def __init__(self, name: str, compute: DeclaredCompute) -> None:
        self.at_s = 0.0
        self.begins_s = 0.0
        self.rounds = 0
        self.metrics: Mapping[str, float] = {}
        self._name = name
        self._compute = compute
        self._over_s: list[float] = [0.0]
        self._untold: list[RoundOver] = []
        self._seconds = 0.0
        self._steps = 0
        self._drift: tuple[FragmentDrift, ...] = ()

    def over(self, number: int, plan: Plan, done: SimulatedRound) -> None:
        """The round that it asked for was simulated."""
        self.rounds = number
        self._over_s.append(done.finished_s[self._name])
        self._untold.append(RoundOver(number, plan, done))

    def take(self, activity: Activity) -> Iterator[ToldOver]:
        """Do what it does up to its next round, or its end; what it tells on its way."""
        for deed in activity.deeds:
            match deed:
                case ComputeStep():
                    seconds = self._compute.step(self.at_s)
                    self.at_s += seconds
                    self._seconds += seconds
                    self._steps += 1
                case AwaitRound(round=number):
                    self.at_s = max(self.at_s, self._over_s[number])
                case EndStep(metrics, drift):
                    self.metrics = metrics
                    self._drift += drift
                    yield from self._told(0, self._own(metrics))
        if activity.asks:
            yield from self._told(1 if activity.later else 0, NO_STEPS)
            self.begins_s = max(self.at_s, self._over_s[-1])
        else:
            self.at_s = max(self.at_s, self._over_s[-1])
            yield from self._told(0, NO_STEPS)

    def _own(self, metrics: Mapping[str, float]) -> StepsTaken:
        rate = {"samples_per_s": self._compute.batch * self._steps / self._seconds} if self._seconds else {}
        return StepsTaken(self._seconds, {**metrics, **rate}, self._drift)

    def _told(self, keep: int, steps: StepsTaken) -> Iterator[ToldOver]:
        """It tells of all rounds that are over but the newest few."""
        over = [its for its in self._untold if its.done.finished_s[self._name] <= self.at_s]
        rounds = tuple(over[: len(over) - keep])
        if not rounds:
            return
        self._untold = self._untold[len(rounds) :]
        if steps is not NO_STEPS:
            self._seconds, self._steps, self._drift = 0.0, 0, ()
        yield ToldOver(self.at_s, rounds, steps)
