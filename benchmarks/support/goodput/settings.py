"""The model, steps and rounds of all systems in `benchmarks.goodput`."""

from __future__ import annotations

from testbed.workload import Workload

MEMBERS = 16
#: The parameters of `gpt` are 0.83 M. Beside fifteen other members a batch of eight took 55 ms of a processor, so that
#: two processors had nothing left at this declared step; a batch of four leaves them half.
MODEL, BATCH, STEP_S = "gpt", 4, 0.5
OPTIMIZER, LEARNING_RATE = "adam", 2e-3
#: Local steps in a round, of every system with local steps, and DiLoCo's outer rates.
EVERY, OUTER, MOMENTUM = 16, 0.7, 0.9
#: The members without which no system goes on; half of them.
QUORUM = MEMBERS // 2
#: The steps from one checkpoint of torchrun's workers to the next.
CHECKPOINT_EVERY = 10
#: Rounds from one evaluation to the next, of systems with local steps and of those without. An evaluation takes 3 to
#: 9 s beside fifteen members that compute, and the others wait for it.
EVALUATE_ROUNDS, EVALUATE_STEPS = 4, 20
#: The member that reports a round for all members.
TOGETHER = "all"
#: The variable with the run's seed, and the one with the file of the checkpoint.
SEED, CHECKPOINT = "GOODPUT_SEED", "GOODPUT_CHECKPOINT"


def workload(seed: int, shard: int) -> Workload:
    """Return the workload of a member, the same as the testbed's own workers have."""
    return Workload(
        MODEL,
        BATCH,
        OPTIMIZER,
        LEARNING_RATE,
        seed,
        shard,
        MEMBERS,
        step_seconds=STEP_S,
        device="cpu",
    )
