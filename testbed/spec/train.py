"""The training of a built-in model in an experiment: the model, its data, and the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from testbed.spec.model import Strict, misfit
from testbed.spec.program import ProgramSection

Model = Literal["cnn", "svm", "gpt-small", "gpt", "gpt-medium", "synthetic"]

#: Model → the data sets that the model may learn from; the first is the default.
_TEXTS = ("text", "documentation")
DATASETS: Mapping[str, tuple[str, ...]] = {
    "cnn": ("digits",),
    "svm": ("digits",),
    "gpt-small": _TEXTS,
    "gpt": _TEXTS,
    "gpt-medium": _TEXTS,
    "synthetic": ("none",),
}

#: Model → its number of parameters, from which planning computes a round's bytes before training begins.
PARAMETERS = {"cnn": 151_306, "svm": 650, "gpt-small": 116_864, "gpt": 825_856, "gpt-medium": 2_716_800}
#: GPT → its number of blocks and their width w. A block's matrices have 12w² elements, and 16w inputs and outputs.
_GPTS = {"gpt-small": (2, 64), "gpt": (4, 128), "gpt-medium": (6, 192)}
_MATRICES, _SIDES = 12, 16
#: Model → its number of trained tensors. A GPT has 5 outside its blocks, and 10 in each block, or 14 by low rank.
_TENSORS = {"cnn": 8, "svm": 2}
_OUTSIDE, _IN_BLOCK, _IN_LOW_RANK = 5, 10, 14
#: `text` has this many characters more than `documentation`; each is a row of the embedding and a row of the head.
_FEWER_CHARACTERS = 7


class OptimizerSection(Strict):
    """The optimizer of each worker's steps."""

    name: Literal["sgd", "adam", "adamw", "muon"] = "adam"
    """The optimizer's name."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """The learning rate."""


class PartitionSection(Strict):
    """How the training data is divided among the workers."""

    kind: Literal["iid", "dirichlet", "classes", "sites"] = "iid"
    """iid divides evenly at random, dirichlet by Dirichlet draws over the labels for each worker, classes by label, and
    sites by Dirichlet draws for each site, whose workers share the site's data evenly."""
    alpha: float = Field(default=1.0, ge=1e-3, le=1e6)
    """The parameter of the Dirichlet draws: the smaller it is, the more the workers' data differ."""

    @model_validator(mode="after")
    def _draws_by_alpha(self) -> Self:
        # A sweep may vary a kind beside an alpha that only some kinds use.
        if "alpha" in self.model_fields_set and "kind" not in self.model_fields_set:
            raise misfit(
                "alpha",
                f"`kind` is {self.kind} by default, which draws nothing",
                "`kind: dirichlet` or `kind: sites` beside it",
            )
        return self


class TrainSection(Strict):
    """Training of a built-in model."""

    model: Model
    """The model. A synthetic model has random gradients, which are sent like others."""
    dataset: Literal["digits", "text", "documentation", "none"] | None = None
    """The data set, for models that can learn from several; by default the model's first."""
    batch: int = Field(default=32, ge=1, le=1_000_000)
    """The number of samples in a worker's step."""
    optimizer: OptimizerSection = OptimizerSection()
    """The optimizer of each worker's steps."""
    rounds: int = Field(ge=1, lt=2**31)
    """The number of rounds of the training; of iterations, if members gossip."""
    partition: PartitionSection = PartitionSection()
    """How the training data is divided among the workers."""
    evaluate_every: int = Field(default=10, ge=1)
    """Evaluate the model after each round whose number is a multiple of this value."""
    parameters: int | None = Field(default=None, ge=1, le=10**11)
    """The number of parameters of a synthetic model, which needs this field."""
    rank: int | None = Field(default=None, ge=1)
    """Train a GPT by low-rank updates (LoRA): its matrices keep their random initial values, and changes of this rank
    are learned and sent."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device on which workers compute; auto takes a GPU where the worker has one, else the CPU."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        fitting = DATASETS[self.model]
        if self.dataset not in (None, *fitting):
            raise misfit("dataset", f"the model {self.model} does not learn from {self.dataset}", " or ".join(fitting))
        if (self.model == "synthetic") != (self.parameters is not None):
            raise misfit("parameters", "the field and `model: synthetic` need each other", "both, or neither")
        if self.rank is not None:
            if self.model not in _GPTS:
                raise misfit("rank", f"the model {self.model} does not learn by low rank", "a GPT, or no rank")
            if (width := _GPTS[self.model][1]) <= self.rank:
                rule = f"{self.rank} is not below the {width} rows of the model's matrices"
                raise misfit("rank", rule, f"below {width}")
            if self.optimizer.name == "muon":
                rule = "low-rank updates have no hidden matrices that Muon could step"
                raise misfit("optimizer.name", rule, "`optimizer: {name: adamw}`, or no `rank`")
        return self

    @property
    def data(self) -> str:
        """The name of the data set."""
        return self.dataset or DATASETS[self.model][0]

    @property
    def model_bytes(self) -> int:
        """The bytes that one member contributes to a round: a gradient in fp32."""
        if self.parameters or self.model not in _GPTS:
            return 4 * (self.parameters or PARAMETERS[self.model])
        blocks, width = _GPTS[self.model]
        spared = 2 * width * _FEWER_CHARACTERS if self.data == "documentation" else 0
        if self.rank:
            spared += blocks * width * (_MATRICES * width - _SIDES * self.rank)
        return 4 * (PARAMETERS[self.model] - spared)

    @property
    def tensors(self) -> int:
        """The number of the model's trained tensors, which is the most fragments that a scheme can divide it into.

        A synthetic model gets one tensor for each fragment, of at least one parameter.
        """
        if self.model not in _GPTS:
            return self.parameters or _TENSORS[self.model]
        return _OUTSIDE + _GPTS[self.model][0] * (_IN_LOW_RANK if self.rank else _IN_BLOCK)


def read_train(value: Any) -> Any:
    """Return the section `train` of a file, validated: as a ProgramSection if it has a command, else a TrainSection."""
    if isinstance(value, TrainSection | ProgramSection):
        return value
    program = isinstance(value, Mapping) and "command" in value
    return (ProgramSection if program else TrainSection).model_validate(value)


TrainField = Annotated[TrainSection | ProgramSection, BeforeValidator(read_train)]
