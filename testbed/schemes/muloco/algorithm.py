"""MuLoCo around a loop's steps (arXiv 2505.23725).

    Δ = θ − (θ after H steps of Muon)
    e ← β·e + Δ,  q = Q(e),  e ← e − q      Q: 4 levels over 6 σ, by the codec bins2
    m ← μ·m + mean(q),  θ ← θ − α·(mean(q) + μ·m)

Every member that encodes has a residual e: who sends its own, relays for their sums, a root for the mean, which is
quantized once more on its way back. The optimizer inside is the loop's: Muon for the hidden layers' matrices and AdamW
for the rest (`optimizer: {name: muon}` in an experiment, `torch.optim.Muon` in a program).
"""

from __future__ import annotations

from testbed.schemes.muloco import MulocoOptions
from testbed.schemes.training import RoundTraining
from testbed.sync import Nesterov
from testbed.sync.strategies import LocalSgd, Strategy


def build(options: MulocoOptions, training: RoundTraining) -> Strategy:
    """The strategy for a member's model."""
    return LocalSgd(
        training.reducer,
        training.parameters,
        every=options.every,
        outer=Nesterov(options.outer.learning_rate, options.outer.momentum),
        weight=training.weight,
        error_decay=options.decay,
    )
