"""The candidates of the conductor: schemes, their local steps and codecs, and all that it knows of each beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import log

from testbed.plan import PLAIN_CODEC, TrainingChoice

#: The logarithm of a factor as it is believed before a run: its mean and its standard deviation.
Prior = tuple[float, float]

#: Local steps to a round: each rung costs about as much more progress as it saves rounds.
STEPS = (2, 4, 8, 16, 32, 64, 128)

#: The same for schemes that leave out so much that they need long rounds.
LONG = (8, 16, 32, 64)

#: Optimizers that divide by the size of a member's own gradients. For a value with signal s and noise σ, each of n
#: members steps by s/√(s² + σ²), all-reduce by s/√(s² + σ²/n). So the mean of members' steps is from 1/√n to 1 of
#: all-reduce's, however few the steps of a round: for nine members 0.33 to 1, in the middle 0.6. Eight members of a
#: small GPT needed 1.6 times the steps with rounds of 2, and 2.1 times with rounds of 16.
NORMALIZING = ("adam", "adamw", "muon")


@dataclass(frozen=True, slots=True)
class SchemeTraits:
    """The conductor's knowledge of a scheme."""

    #: The local steps to a round that are candidates.
    steps: tuple[int, ...]
    #: γ, the worth of a step over one of flat all-reduce, horizon and codec aside; None for flat all-reduce itself.
    worth: Prior | None = None
    #: γ where members step by one of NORMALIZING; None if those make no difference.
    normalized: Prior | None = None
    #: The codec that the scheme is made for, whose effect γ includes; None if the scheme goes with each of CODECS.
    codec: str | None = None
    #: The only optimizer with which the scheme is a candidate; None for any.
    optimizer: str | None = None
    #: Whether a round sets parameters to the members' plain mean. Only then does merging show the horizon: an outer
    #: optimizer moves by more than the mean change.
    plain_mean: bool = False

    def worth_with(self, optimizer: str) -> Prior | None:
        """Return γ for members that step by an optimizer."""
        return self.normalized if self.normalized and optimizer in NORMALIZING else self.worth


#: Every scheme that the conductor may choose; the conductor names schemes here alone. The order is that of the unknowns
#: in `learn`. A tenth more loss, as sparseloco's here, is some third of the steps (docs/benchmarks.md).
SCHEMES: Mapping[str, SchemeTraits] = {
    "gradients": SchemeTraits((1,)),
    "local_sgd": SchemeTraits(STEPS, worth=(0.0, 0.1), normalized=(log(0.6), 0.3), plain_mean=True),
    "diloco": SchemeTraits(STEPS, worth=(0.0, 0.3), normalized=(log(0.6), 0.5)),
    "sparseloco": SchemeTraits(LONG, worth=(log(0.7), 0.3), codec="sparse"),
    "muloco": SchemeTraits(LONG, worth=(0.0, 0.3), codec="bins2", optimizer="muon"),
}

#: Every codec from the most bytes to the fewest, with κ, its factor on the worth of a step; None for no codec. Values
#: that a codec leaves out come a round later; their cost is judged like that of local steps, with which codecs compete:
#: sixteen times fewer bytes are as many as sixteen local steps save.
#:
#: A codec leaves the part δ of the squares to a later round (for normally distributed values fp16 1e-7, int8 5e-5,
#: bins4 0.012, bins2 0.16). Error feedback adds the former remainder and subtracts the new one, which is noise beside
#: the gradient's own, in each encoding on a value's path. Eight members of a small GPT needed no more steps with int8,
#: 1.09 times as many with bins4, and 1.5 times with bins2, at any time of the run.
CODECS: Mapping[str, Prior | None] = {
    PLAIN_CODEC: None,
    "fp16": (0.0, 0.001),
    "int8": (-0.002, 0.005),
    "bins4": (-0.08, 0.04),
    "bins2": (-0.4, 0.2),
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to train: a scheme, its local steps to a round, and the codec of its rounds."""

    scheme: str
    steps: int = 1
    codec: str = field(default=PLAIN_CODEC)

    @property
    def training(self) -> TrainingChoice:
        """The scheme and its steps as a plan has them."""
        return TrainingChoice(self.scheme, {"every": self.steps} if self.steps > 1 else {})

    @classmethod
    def of(cls, training: TrainingChoice, codec: str) -> Candidate:
        """Return the candidate that a plan has chosen."""
        return cls(training.scheme, training.local_steps, codec)

    def __str__(self) -> str:
        often = f" every {self.steps} steps" if self.steps > 1 else ""
        return f"{self.scheme}{often}, {self.codec}"


#: Flat all-reduce (synchronous SGD), against which all other candidates are measured.
FIRST = Candidate("gradients")


def candidates(optimizer: str = "") -> Iterator[Candidate]:
    """Yield all candidates for members that step by an optimizer, flat all-reduce first."""
    able = {name: its for name, its in SCHEMES.items() if its.optimizer in (None, optimizer)}
    for codec in CODECS:
        for steps in (1, *STEPS):
            for name, its in able.items():
                if its.codec is None and steps in its.steps:
                    yield Candidate(name, steps, codec)
    for steps in LONG:
        for name, its in able.items():
            if its.codec is not None and steps in its.steps:
                yield Candidate(name, steps, its.codec)
