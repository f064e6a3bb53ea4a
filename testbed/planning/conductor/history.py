"""What was seen of training so far: stretches under one choice each, with the losses at parameters that all held."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from testbed.planning.conductor.candidate import Candidate

#: Losses that are kept of a stretch; beyond, neighbours become one, with both their weights.
KEPT = 64


@dataclass(frozen=True, slots=True)
class SeenLoss:
    """A mean loss over fresh batches of `weight` members, after `step` steps."""

    step: float
    value: float
    weight: float


@dataclass(frozen=True, slots=True)
class TrainedStretch:
    """The steps from `began` to `ended`, all under one `candidate`, in so many `rounds`.

    own      by how much members' losses fell in their local steps, each at its own parameters, in sum over rounds
    merged   by how much the loss at the parameters that all held fell in the same rounds
    judged   rounds in these two sums
    apart    how far members stood from their mean, as a part of how far that had moved: the mean over merges; None
             where they did not say
    """

    candidate: Candidate
    began: int
    ended: int
    losses: tuple[SeenLoss, ...] = ()
    rounds: int = 0
    own: float = 0.0
    merged: float = 0.0
    judged: int = 0
    apart: float | None = None

    @property
    def undone(self) -> float | None:
        """The part of what members learned by themselves that merging undid; None where that can't be said."""
        return None if not self.judged or self.own <= 0 else 1 - self.merged / self.own


@dataclass(slots=True)
class TrainedHistory:
    """Gathers rounds into stretches; `steps` were taken in all of them."""

    steps: int = 0
    _stretches: list[TrainedStretch] = field(default_factory=list)
    _before: tuple[float, float] | None = None  # the loss that all held before the last round, and members' own in it
    _merges: int = 0

    @property
    def stretches(self) -> tuple[TrainedStretch, ...]:
        """All so far."""
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
        """A round is over, after `steps` steps in all.

        agreed   the members' mean loss at what all held before it, and `own`, in its last local step, at their own
                 parameters; both of fresh batches
        """
        stretch = self._stretch(candidate)
        if agreed is not None and self._before is not None:
            before, last = self._before
            stretch = replace(
                stretch,
                own=stretch.own + before - last,
                merged=stretch.merged + before - agreed,
                judged=stretch.judged + 1,
            )
        self._before = (agreed, own) if candidate.steps > 1 and agreed is not None and own is not None else None
        losses = stretch.losses
        if agreed is not None:
            losses = _thinned((*losses, SeenLoss(float(self.steps), agreed, float(members))))
        if apart is not None:
            self._merges += 1
            apart = (stretch.apart or 0.0) + (apart - (stretch.apart or 0.0)) / self._merges
        self._stretches[-1] = replace(
            stretch,
            ended=steps,
            losses=losses,
            rounds=stretch.rounds + 1,
            apart=stretch.apart if apart is None else apart,
        )
        self.steps = steps

    def _stretch(self, candidate: Candidate) -> TrainedStretch:
        if not self._stretches or self._stretches[-1].candidate != candidate:
            self._stretches.append(TrainedStretch(candidate, self.steps, self.steps))
            self._before, self._merges = None, 0
        return self._stretches[-1]


def _thinned(losses: tuple[SeenLoss, ...]) -> tuple[SeenLoss, ...]:
    if len(losses) <= KEPT:
        return losses
    return (
        tuple(_joined(*pair) for pair in zip(losses[::2], losses[1::2], strict=False)) + losses[len(losses) // 2 * 2 :]
    )


def _joined(one: SeenLoss, other: SeenLoss) -> SeenLoss:
    weight = one.weight + other.weight
    part = other.weight / weight
    return SeenLoss(one.step + (other.step - one.step) * part, one.value + (other.value - one.value) * part, weight)
