"""What there is to choose among: schemes, their local steps, codecs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from testbed.plan import PLAIN_CODEC, TrainingChoice

#: Local steps to a round: each rung costs about as much more progress as it saves rounds.
STEPS = (2, 4, 8, 16, 32, 64, 128)

#: Those of schemes that leave out so much that they want long rounds.
LONG = (8, 16, 32, 64)

#: From the most bytes to the fewest. What they leave out comes a round later; what that costs is judged as local steps
#: are, with which it competes: sixteen times fewer bytes are as many as sixteen local steps save.
CODECS = (PLAIN_CODEC, "fp16", "int8", "bins4", "bins2")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to train: a `scheme` with so many local `steps` to a round, and the codec of its rounds."""

    scheme: str
    steps: int = 1
    codec: str = field(default=PLAIN_CODEC)

    @property
    def training(self) -> TrainingChoice:
        """It as a plan has it."""
        return TrainingChoice(self.scheme, {"every": self.steps} if self.steps > 1 else {})

    @classmethod
    def of(cls, training: TrainingChoice, codec: str) -> Candidate:
        """What a plan has chosen."""
        return cls(training.scheme, training.local_steps, codec)

    def __str__(self) -> str:
        often = f" every {self.steps} steps" if self.steps > 1 else ""
        return f"{self.scheme}{often}, {self.codec}"


#: Flat all-reduce, which all others are measured against: synchronous SGD.
FIRST = Candidate("gradients")


def candidates(optimizer: str = "") -> Iterator[Candidate]:
    """All of them, flat all-reduce first, for members that step by this optimizer.

    Schemes that are made for a codec come with it.
    """
    for codec in CODECS:
        yield Candidate(FIRST.scheme, 1, codec)
        for steps in STEPS:
            yield Candidate("local_sgd", steps, codec)
            yield Candidate("diloco", steps, codec)
    for steps in LONG:
        yield Candidate("sparseloco", steps, "sparse")
        if optimizer == "muon":
            yield Candidate("muloco", steps, "bins2")
