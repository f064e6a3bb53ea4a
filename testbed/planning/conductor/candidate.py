"""The candidates of the conductor: schemes with their local steps, and codecs with what is known of each beforehand.

The schemes say of themselves what is known of them; the caller hands their traits to the conductor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from testbed.plan import PLAIN_CODEC, Prior, SchemeTraits, TrainingChoice, bytes_through

#: Optimizers that divide by the size of a member's own gradients. For a value with signal s and noise σ, each of n
#: members steps by s/√(s² + σ²), all-reduce by s/√(s² + σ²/n). So the mean of members' steps is from 1/√n to 1 of
#: all-reduce's, however few the steps of a round: for nine members 0.33 to 1, in the middle 0.6. Eight members of a
#: small GPT needed 1.6 times the steps with rounds of 2, and 2.1 times with rounds of 16.
NORMALIZING = ("adam", "adamw", "muon")


#: Every codec from the most bytes to the fewest, with the prior of κ, its factor on the worth of a step; None for no
#: codec. Values that a codec leaves out come a round later. Their cost is judged like that of local steps, with which
#: codecs compete: a codec with a sixteenth of the bytes saves as many bytes as sixteen local steps to a round do.
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


@dataclass(frozen=True)
class SchemeCatalog:
    """The schemes that the conductor may choose, with the traits of each.

    Raises:
        ValueError: Not exactly one of the schemes is flat all-reduce (synchronous SGD), which has no worth of its own
            because the others are measured against it.
    """

    traits: Mapping[str, SchemeTraits]
    #: Flat all-reduce without a codec, against which all other candidates are measured.
    flat: Candidate = field(init=False)

    def __post_init__(self) -> None:
        flat = [name for name, its in self.traits.items() if its.worth is None]
        if len(flat) != 1:
            raise ValueError(
                f"the schemes without `worth` are {flat}; exactly one must be, flat all-reduce: give the others theirs"
            )
        object.__setattr__(self, "flat", Candidate(flat[0]))

    def candidates(self, optimizer: str = "") -> Iterator[Candidate]:
        """Yield all candidates for members that step by an optimizer, flat all-reduce first."""
        able = {name: its for name, its in self.traits.items() if its.optimizer in (None, optimizer)}
        ladder = sorted({steps for its in able.values() for steps in its.steps})
        for codec in CODECS:
            for steps in ladder:
                for name, its in able.items():
                    if its.codec is None and steps in its.steps:
                        yield Candidate(name, steps, codec)
        for steps in ladder:
            for name, its in able.items():
                if its.codec is not None and steps in its.steps:
                    yield Candidate(name, steps, its.codec)

    def coded_bytes(self, codec: str, model_bytes: int, through: str) -> int:
        """Convert a member's bytes in a round, as the codec `through` encodes them, to those of `codec`.

        A codec that a scheme is made for has that scheme's `round_share`.
        """
        shares = {its.codec: its.round_share for its in self.traits.values() if its.codec is not None}
        plain = round(model_bytes * shares.get(codec, 1.0) / shares.get(through, 1.0))
        return bytes_through(codec, plain, through)

    def worths(self, optimizer: str) -> dict[str, Prior]:
        """Return the prior of each scheme's γ (see `progress`) under the members' optimizer. All-reduce has none."""
        return {
            name: its.normalized if its.normalized and optimizer in NORMALIZING else its.worth
            for name, its in self.traits.items()
            if its.worth is not None
        }
