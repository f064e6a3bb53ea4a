"""Decoupled DiLoCo: no member waits; a syncer merges each fragment of the model once some members' changes are there.

    member m, all the time      θ_m ← θ_m + step
    asked for a fragment p      Δ_m = Θ_p - θ_m,p,  w_m = tokens² / steps, both since the last merge of p
    syncer, of K members        Θ_p ← Nesterov(Θ_p, merge of Δ_m by w_m)        (syncer.py)
    told the result             θ_m,p ← Θ_p

Members take equal batches here, so that w_m is the number of steps that a member took. Its steps between its answer and
the result are overwritten, as in the paper: at most `overlap` of `every` steps, where the network is that fast. Where
an answer comes too late for a merge, the member's steps since the last merge of that fragment are lost.

A member answers with its change since the last merge, and only once. Where the result of that merge is still on its way
to the member, it answers after the result has come and a step is taken. So no change counts twice, and slow links slow
merges down, but no steps. The syncer runs in the process of one member, and is lost with it.

Under a codec for changes a member keeps what the codec left out of its answers, and adds it to the next ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from testbed.schemes.assignment import GossipAssignment, Setting, best_reached, star_around
from testbed.schemes.options import NESTEROV, LocalSteps, Misfit, OuterOptions, limited
from testbed.schemes.scheme import Scheme
from testbed.schemes.training import GossipTraining
from testbed.sync.gossip.effects import Participant


@dataclass(frozen=True)
class DecoupledOptions(LocalSteps):
    """Options of Decoupled DiLoCo.

    Defaults are those of arXiv 2604.21428 as others report them (H = P = 24, τ = 2, K = 1). The margin, which they do
    not report, is ours; the outer rates are DiLoCo's.
    """

    #: Steps of the fastest member, or of the `quorum`-th fastest, in which each fragment is merged once (H).
    every: int = limited(24, ge=1)
    #: The parts of the model (P).
    fragments: int = limited(24, ge=1)
    #: Members whose changes a merge needs (K).
    quorum: int = limited(1, ge=1)
    #: Steps that a merge may take beside training (τ).
    overlap: int = limited(2, ge=0)
    #: The fraction of the time that is left of `overlap`, once the quorum is there, in which the syncer waits for other
    #: members.
    margin: float = limited(0.5, ge=0, lt=1)
    #: Average the changes' directions and lengths separately (radial), or the changes themselves (mean).
    merge: Literal["radial", "mean"] = "radial"
    #: The outer optimizer, which applies the members' mean change to the model.
    outer: OuterOptions = NESTEROV
    #: The codec of everything that travels. bins4, of four bits, is too coarse for parameters: under it changes travel
    #: both ways, and what it leaves out is added to the next ones.
    codec: Literal["fp32", "fp16", "bf16", "bins4"] = "fp32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every % self.fragments:
            raise Misfit("fragments", f"{self.fragments} do not divide {self.every} steps evenly", "a divisor of every")

    @property
    def in_changes(self) -> bool:
        """True if the syncer sends a merged fragment as its change, not as its parameters."""
        return self.codec == "bins4"

    @property
    def parts(self) -> int:
        """The number of fragments."""
        return self.fragments


SCHEME = Scheme(
    name="decoupled_diloco",
    options=DecoupledOptions,
    exchange="gossip",
    planned=False,
    synchronous=False,
    elastic=True,
    survives=True,
    source="Douillard et al. 2026, arXiv 2604.21428",
)


def assign(options: DecoupledOptions, setting: Setting) -> GossipAssignment:
    """Place the syncer at the member that the others reach best.

    Raises:
        Misfit: The quorum is larger than all members together.
        PolicyError: No member can be reached by all.
    """
    members = len(setting.view.names)
    if options.quorum > members:
        raise Misfit("quorum", f"{options.quorum}, where there are {members} workers", f"{members} at most")
    syncer = best_reached(setting.view)
    return GossipAssignment(
        protocol="decoupled_diloco",
        graph=star_around(syncer, setting.view),
        rules={"syncer": syncer, "codec": options.codec},
        steps=dict.fromkeys(setting.view.names, options.every),
        evaluators={syncer: (1, 0)},
    )


def build(options: DecoupledOptions, training: GossipTraining) -> Participant:
    """Return the participant of a member, or of the member whose process runs the syncer as well."""
    from testbed.schemes.decoupled_diloco.learner import DecoupledLearner, SyncingLearner

    name, syncer = training.name, training.node.rules["syncer"]
    parameters, rounds = training.parameters, training.iterations
    if name == syncer:
        return SyncingLearner(name, training.members, options, parameters, rounds, training.clock)
    return DecoupledLearner(name, syncer, options, parameters, rounds, training.node.first)
