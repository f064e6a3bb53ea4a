"""SparseLoCo: local steps, and of their change only the largest values of each chunk are sent, in two bits each.

    Δ = θ − (θ after H local steps)
    e ← β·e + Δ                                     e: each member's own residual
    q = Q(top-k of each chunk of e)
    e ← e − q
    q ← q·min(1, median of all members' ‖q‖ / ‖q‖)  for each tensor of the model (`clip`)
    θ ← θ − α·mean(q)                               of each element over the members that sent it (`mean`)

Source: Sarfi et al. 2025, arXiv 2508.15706, by others' account of it; the defaults and both `clip` and `mean` are those
of its production run (templar's code). CCLoco's older code is `every: 15`, `top_k: 32`, `decay: 0.999`, `mean: all` and
`clip: false`, with 256 bins (`bits: 8`).

The residual stands in for the outer optimizer's momentum: momentum would apply again the values that were sent, beside
those that were not. The residual does not keep what `clip` takes away. An element that is zero counts as not sent. The
median of an even number of norms is the lower of the two in the middle.

The sums of q travel whole through the codec `sparse`, so that the mean is exact whatever the trees are: a single member
sends two bits a value, relays send the union of the indices, with as many levels as their sums have. For the mean over
senders a second half of the tensor has a one for each element that a member sends. `clip` needs all members' norms
before q is summed, so it adds a small round before each round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Any, Literal

from testbed.plan import SchemeTraits
from testbed.schemes.options import LocalSteps, Misfit, limited
from testbed.schemes.scheme import LONG, Scheme
from testbed.schemes.training import RoundTraining
from testbed.sync import flat
from testbed.sync.strategies import Strategy
from testbed.sync.strategies.strategy import check_whole

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SparseLoCoOptions(LocalSteps):
    """Options of SparseLoCo."""

    among_all = True  # rounds average changes, so that a difference between groups would stay for good

    every: int = limited(30, ge=1)
    #: The values that each chunk sends.
    top_k: int = limited(64, ge=1)
    #: The side of a chunk of `chunk` × `chunk` elements.
    chunk: int = limited(64, ge=1)
    #: Bits of a sent value; `null`: values are sent as fp32.
    bits: int | None = limited(2, ge=1, le=8)
    #: The fraction of the residual that is kept in each round (β).
    decay: float = limited(0.95, ge=0, le=1)
    #: The outer learning rate (α).
    learning_rate: float = limited(1.0, gt=0)
    #: The members over which an element is averaged: those that sent it, or all.
    mean: Literal["senders", "all"] = "senders"
    #: Whether each tensor of a member is scaled down to the median of the members' norms. A step then has two rounds.
    clip: bool = True

    @property
    def round_share(self) -> float:
        """The values in a round as a multiple of the model's: twice as many if senders are counted, norms left out."""
        return 2.0 if self.mean == "senders" else 1.0

    @property
    def cycle(self) -> int:
        """The rounds of a step: two with `clip`."""
        return 2 if self.clip else 1

    @property
    def uneven(self) -> bool:
        """True with `clip`: every other round has the norms alone."""
        return self.clip

    def check_elastic(self) -> None:
        """Raise Misfit with `clip`, whose step has two rounds."""
        if self.clip:
            raise Misfit("clip", "a step with two rounds leaves members no moment to come back", "`clip: false`")

    def check_plan(self, policy: str, policy_options: Mapping[str, Any], codec: str) -> None:
        """Check as for any scheme, and refuse codecs that leave something out a second time."""
        super().check_plan(policy, policy_options, codec)
        if codec not in ("sparse", "fp32"):
            raise Misfit("codec", f"{codec} leaves something out a second time", "`codec: sparse`")


SCHEME = Scheme(
    name="sparseloco",
    options=SparseLoCoOptions,
    exchange="all-reduce",
    planned=True,
    elastic=True,
    # Its members end with 5 to 16 % more loss (docs/benchmarks.md), which costs about a third of the steps or more.
    traits=SchemeTraits(steps=LONG, worth=(log(0.7), 0.3), codec="sparse", options={"clip": False}, round_share=2.0),
    codec="sparse",
    source="Sarfi et al. 2025, arXiv 2508.15706; second-hand, and templar's and CCLoco's code",
)


class SparseLoCo(Strategy):
    """The strategy of SparseLoCo: every few steps a round sends the largest changes, and keeps the rest as residual.

    Members begin with the same parameters and agree after each round. It needs four times the parameters in memory, one
    more with `mean: senders`, and as much as a round sends if the plan has a codec.
    """

    def __init__(self, training: RoundTraining, options: SparseLoCoOptions) -> None:
        from testbed.sync import Residual

        super().__init__(None, training.weight)
        self._reducer = training.reducer
        self._parameters = training.parameters
        self._options = options
        self._anchor = flat.gather(self._parameters)
        self._error = flat.room(self._parameters)
        self._sent = self._room = flat.room(self._parameters)
        if options.mean == "senders":
            self._room = self._sent.new_zeros(2 * len(self._sent))
            self._sent = self._room[: len(self._sent)]
        self._residual = Residual()
        self._steps = 0
        self._rounds = 0

    def after_step(self) -> None:
        """Count a step, and reduce what changed after `every` steps."""
        self._steps += 1
        if self._steps >= self._options.every:  # a restored state may be of a longer period
            self._step_out()

    def settle(self) -> None:
        """Reduce what has changed since the last round."""
        if self._steps:
            self._step_out()

    @property
    def together(self) -> bool:
        """True if no step was taken since the last round."""
        return not self._steps

    def over(self, rounds: int, taken: int) -> bool:
        """Return whether the rounds of the run are done. With `clip` a period has two, so there may be one too many."""
        return self._rounds >= (-(-rounds // 2) if self._options.clip else rounds)

    def agreed(self) -> AbstractContextManager[None]:
        """Show the parameters of the last round while inside."""
        return flat.showing(self._anchor, self._parameters)

    def state_dict(self) -> dict[str, Any]:
        """Return the anchor, the member's residuals, and the count of steps in the period."""
        counts = {"steps": self._steps, "rounds": self._rounds}
        tensors = {"anchor": self._anchor.clone(), "error": self._error.clone(), "residual": self._residual.state()}
        return {**counts, **tensors}

    def handover(self) -> dict[str, Any]:
        """Return the state for a new member, which starts without residuals."""
        return {**self.state_dict(), "error": flat.room(self._parameters), "residual": None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`."""
        self._steps, self._rounds = int(state["steps"]), int(state["rounds"])
        self._anchor.copy_(state["anchor"])
        self._error.copy_(state["error"])
        self._residual.restore(state["residual"])

    def _step_out(self) -> None:
        import torch

        options = self._options
        changed = torch.sub(self._anchor, flat.gather(self._parameters, self._sent), out=self._sent)
        self._error.mul_(options.decay).add_(changed)
        sizes = [parameter.numel() for parameter in self._parameters]
        parts, errors = torch.split(self._sent, sizes), torch.split(self._error, sizes)
        for parameter, part, error in zip(self._parameters, parts, errors, strict=True):
            values = error.view(parameter.shape)
            part.copy_(compressed(values, options.top_k, options.chunk, options.bits).flatten())
        self._error.sub_(self._sent)
        senders = self._room[len(self._sent) :]
        if len(senders):
            torch.ne(self._sent, 0, out=senders)
        if options.clip:
            self._clip(parts)
        result = self._reducer.allreduce(self._room, self.weight, self._residual)
        check_whole(result)
        if len(result.slices) > 1:  # a member was lost: its values may be in a mean that its counts are not in
            senders.fill_(1)
        if len(senders):
            self._sent.div_(senders.masked_fill_(senders == 0, 1))
        self._anchor.sub_(self._sent, alpha=options.learning_rate)
        flat.scatter(self._anchor, self._parameters)
        self._steps = 0
        self._rounds += 1

    def _clip(self, parts: Sequence[torch.Tensor]) -> None:
        """Scale each part down to the median of the members' norms, which a round without weights tells all members."""
        import torch

        members, own = self._reducer.members, self._reducer.members.index(self._reducer.name)
        norms = torch.zeros(len(members), len(parts), dtype=torch.float32, device=self._sent.device)
        norms[own] = torch.stack([part.norm() for part in parts])
        check_whole(self._reducer.allreduce(norms))
        factors = (norms.median(dim=0).values / norms[own]).nan_to_num(1.0).clamp_max(1.0)
        for part, factor in zip(parts, factors, strict=True):
            part.mul_(factor)


def compressed(values: torch.Tensor, top_k: int, side: int, bits: int | None) -> torch.Tensor:
    """Return a tensor with the `top_k` largest values of each chunk by magnitude, and zeros elsewhere.

    A chunk of a tensor of two or more dimensions is a tile of `side` × `side` of the matrix of its first dimension and
    all others. A chunk of a vector is `side` × `side` elements in a row. Chunks at the ends may be smaller, and no
    chunk is larger than the tensor.

    Args:
        values: A tensor of any shape.
        top_k: The values to keep of a chunk.
        side: The side of a chunk.
        bits: Each kept value becomes the mean of its bin, of 2^bits bins for the whole tensor; None: the value itself.
    """
    import torch

    is_matrix = values.dim() > 1
    matrix = values.flatten(1) if is_matrix else values.reshape(1, -1)
    rows, columns = (max(1, size) for size in matrix.shape)  # a tensor may have no elements
    # Zeros up to the size of a chunk that is far larger than the tensor would fill the memory.
    height, width = (min(side, rows), min(side, columns)) if is_matrix else (1, min(side * side, columns))
    chunks = _tiles(matrix, height, width)
    places = chunks.abs().topk(min(top_k, chunks.shape[1]), dim=1, sorted=False).indices
    kept = chunks.gather(1, places)
    if bits is not None:
        kept = _in_bins(kept, bits)
    thinned = torch.zeros_like(chunks).scatter_(1, places, kept)
    return _untiled(thinned, matrix.shape, height, width).reshape(values.shape)


def _in_bins(kept: torch.Tensor, bits: int) -> torch.Tensor:
    """Return each value as the mean of its bin. Zeros, which smaller chunks have, stay zeros and do not count."""
    import torch

    from testbed.sync.codecs.blocks import binned

    some = kept != 0
    values = kept[some].view(1, -1).cpu()
    if not values.numel():
        return kept
    chosen, means = binned(values, torch.tensor([[values.numel()]], device="cpu"), bits)
    return kept.masked_scatter(some, means[0, chosen[0].long()].to(kept.device))


def _tiles(matrix: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return the tiles of a matrix, one a row, with zeros where a tile extends beyond the matrix."""
    from torch.nn.functional import pad

    rows, columns = matrix.shape
    whole = pad(matrix, (0, -columns % width, 0, -rows % height))
    down, across = whole.shape[0] // height, whole.shape[1] // width
    return whole.view(down, height, across, width).transpose(1, 2).reshape(down * across, height * width)


def _untiled(tiles: torch.Tensor, shape: torch.Size, height: int, width: int) -> torch.Tensor:
    """Return the matrix of this shape that `_tiles` cut."""
    rows, columns = shape
    down, across = -(-rows // height), -(-columns // width)
    whole = tiles.view(down, across, height, width).transpose(1, 2).reshape(down * height, across * width)
    return whole[:rows, :columns]


def build(options: SparseLoCoOptions, training: RoundTraining) -> SparseLoCo:
    """Return the strategy for a member's model."""
    return SparseLoCo(training, options)
