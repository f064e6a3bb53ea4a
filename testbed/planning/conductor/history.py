"""The history of training: stretches under one candidate each, with the losses at parameters that all members held."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from testbed.planning.conductor.candidate import Candidate

#: The most losses kept of a stretch; beyond, neighbouring losses are joined, with the sum of their weights.
KEPT = 64


@dataclass(frozen=True, slots=True)
class SeenLoss:
    """The mean loss of `weight` members over fresh batches, after `step` steps."""

    step: float
    value: float
    weight: float


@dataclass(frozen=True, slots=True)
class TrainedStretch:
    """Successive steps under one candidate."""

    candidate: Candidate
    #: The steps of the run before the stretch, and at its end.
    began: int
    ended: int
    losses: tuple[SeenLoss, ...] = ()
    #: The fall of members' losses in their local steps, each at its own parameters; the sum over `judged` rounds.
    own: float = 0.0
    #: The fall of the loss at parameters that all held, in the same rounds.
    merged: float = 0.0
    judged: int = 0
    #: Members' distance from their mean, as a part of the mean's movement; the mean over merges, None if unreported.
    apart: float | None = None

    @property
    def undone(self) -> float | None:
        """The part of members' own progress that merging undid; None if the losses do not tell."""
        return None if not self.judged or self.own <= 0 else 1 - self.merged / self.own


@dataclass(slots=True)
class TrainedHistory:
    """Gathers a run's rounds into stretches, each of successive steps under one candidate."""

    #: Steps of the run so far.
    steps: int = 0
    _stretches: list[TrainedStretch] = field(default_factory=list)
    _before: tuple[float, float] | None = None  # the last round's `agreed` and `own` losses
    _merges: int = 0

    @property
    def stretches(self) -> tuple[TrainedStretch, ...]:
        """All stretches of the training so far, in order."""
        return tuple(self._stretches)

    def add(
        self,
        candidate: Candidate,
        steps: int,
        members: int,
        agreed: float | None,
        own: float | None,
        apart: float | None = None,
    ) -> None:
        """Record that a round ended.

        Args:
            candidate: The candidate under which members took the round's steps.
            steps: Steps of the run so far, this round's included.
            members: The number of members that reported.
            agreed: Members' mean loss over fresh batches, at the parameters that all held before the round.
            own: The same in the round's last local step, at each member's own parameters.
            apart: As in `TrainedStretch`, of this round's merge.
        """
        stretch = self._stretch(candidate)
        if agreed is not None and self._before is not None:
            before, last = self._before
            own_fall, merged_fall = stretch.own + before - last, stretch.merged + before - agreed
            stretch = replace(stretch, own=own_fall, merged=merged_fall, judged=stretch.judged + 1)
        self._before = (agreed, own) if candidate.steps > 1 and agreed is not None and own is not None else None
        losses = stretch.losses
        if agreed is not None:
            losses = _thinned((*losses, SeenLoss(float(self.steps), agreed, float(members))))
        if apart is not None:
            self._merges += 1
            apart = (stretch.apart or 0.0) + (apart - (stretch.apart or 0.0)) / self._merges
            stretch = replace(stretch, apart=apart)
        self._stretches[-1] = replace(stretch, ended=steps, losses=losses)
        self.steps = steps

    def _stretch(self, candidate: Candidate) -> TrainedStretch:
        if not self._stretches or self._stretches[-1].candidate != candidate:
            self._stretches.append(TrainedStretch(candidate, self.steps, self.steps))
            self._before, self._merges = None, 0
        return self._stretches[-1]


def _thinned(losses: tuple[SeenLoss, ...]) -> tuple[SeenLoss, ...]:
    if len(losses) <= KEPT:
        return losses
    joined = (_joined(*pair) for pair in zip(losses[::2], losses[1::2], strict=False))
    return (*joined, *losses[len(losses) // 2 * 2 :])


def _joined(one: SeenLoss, other: SeenLoss) -> SeenLoss:
    weight = one.weight + other.weight
    part = other.weight / weight
    return SeenLoss(one.step + (other.step - one.step) * part, one.value + (other.value - one.value) * part, weight)
