"""MuLoCo: DiLoCo whose members step by Muon, so that their changes lose little in two bits a value.

    Δ = θ − (θ after H steps of Muon)
    e ← β·e + Δ,  q = Q(e),  e ← e − q      Q: 4 levels over 6 σ, by the codec bins2
    m ← μ·m + mean(q),  θ ← θ − α·(mean(q) + μ·m)

Every member that encodes keeps a residual e: a sender for its own change, a relay for a sum, a root for the mean, which
is quantized once more on its way back. The inner optimizer is the loop's: Muon for the matrices of hidden layers and
AdamW for the rest (`optimizer: {name: muon}` in an experiment, `torch.optim.Muon` in a program).
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.plan import SchemeTraits
from testbed.schemes.options import LocalSteps, OuterOptions, limited
from testbed.schemes.scheme import LONG, Scheme
from testbed.schemes.training import RoundTraining
from testbed.sync.strategies import Strategy

#: The authors' outer optimizer.
OUTER = OuterOptions(learning_rate=0.8, momentum=0.9)


@dataclass(frozen=True)
class MulocoOptions(LocalSteps):
    """Options of MuLoCo."""

    every: int = limited(30, ge=1)
    #: The outer optimizer; without this section a learning rate of 0.8 and a momentum of 0.9.
    outer: OuterOptions = OUTER
    #: The fraction of what the codec left out of one round that is added to the next (β).
    decay: float = limited(0.9, ge=0, le=1)


SCHEME = Scheme(
    name="muloco",
    options=MulocoOptions,
    exchange="all-reduce",
    planned=True,
    elastic=True,
    traits=SchemeTraits(steps=LONG, worth=(0.0, 0.3), codec="bins2", optimizer="muon"),
    codec="bins2",
    inner="muon",
    source="Thérien et al. 2025, arXiv 2505.23725",
)


def build(options: MulocoOptions, training: RoundTraining) -> Strategy:
    """Return the strategy for a member's model."""
    from testbed.sync.strategies import LocalSgd

    return LocalSgd(
        training.reducer,
        training.parameters,
        every=options.every,
        outer=options.outer.optimizer,
        weight=training.weight,
        error_decay=options.decay,
    )
