"""Measure what sending less costs in loss: schemes beside all-reduce of every gradient in fp32, at equal samples.

    python -m benchmarks.schemes [--schemes sparseloco:every=15+top_k=64,muloco@muon] [--dataset documentation]

Each seed trains a GPT on the standard library's text, or on the documentation (`make documentation`). All schemes have
the same start, batches and number of steps; members have a session each over loopback. A scheme has its default options
unless others are named, its own codec, and the optimizer behind the @.

A row is a scheme. Its bytes are those that members' rounds count as sent and received, chunk headers included: the mean
over members, and the member with the most. `ratio` is all-reduce's bytes of the same seeds divided by them. The exit
code is 1 where members end with different parameters.
"""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from math import inf
from statistics import mean
from typing import Any

import torch

from benchmarks.support.controller import Controller, controller
from benchmarks.support.options import Options, positive
from benchmarks.support.paired import interval
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from testbed import sync
from testbed.emulation.containers.documentation import DOCUMENTATION, described
from testbed.schemes.choice import SchemeChoice
from testbed.schemes.training import RoundTraining
from testbed.worker import learner
from testbed.worker.learner import Learner
from testbed.workload import Workload

BASELINE = "gradients"
OPTIMIZER = "adamw"
#: SparseLoCo as CCLoco's code had it, with two bits a value.
OLDER = "sparseloco:every=15+top_k=32+decay=0.999+mean=all+clip=false"
SCHEMES = f"sparseloco,{OLDER},loscar,muloco@muon,diloco:every=30,des_loc:every=30"


@dataclass(frozen=True, slots=True)
class Training:
    """The training that all schemes share."""

    model: str
    members: tuple[str, ...]
    steps: int
    batch: int
    learning_rate: float
    dataset: str = "text"
    rank: int = 0

    def workload(self, optimizer: str, seed: int, shard: int) -> Workload:
        """Return a member's workload."""
        its = (self.model, self.batch, optimizer, self.learning_rate, seed, shard, len(self.members))
        return Workload(*its, dataset=self.dataset, rank=self.rank)

    def learners(self, optimizer: str, seed: int) -> dict[str, Learner]:
        """Return the members' learners, by name."""
        return {
            name: learner.make(self.workload(optimizer, seed, shard), DOCUMENTATION.parent, torch.device("cpu"))
            for shard, name in enumerate(self.members)
        }

    def run(self, where: Controller, learners: Mapping[str, Learner], choice: SchemeChoice) -> list[tuple[str, int]]:
        """Train all members in this process. Returns the digest of each one's parameters, and its number of rounds."""
        with ThreadPoolExecutor(len(learners)) as pool:
            return list(
                pool.map(lambda name: _member(where.address(name), name, learners[name], choice, self), learners)
            )


@dataclass(frozen=True, slots=True)
class Trained:
    """One training: its loss, and the bytes that a member sent and received, in the mean and at most."""

    scheme: str
    seed: int
    loss: float
    mean_bytes: float
    most_bytes: int
    rounds: int
    identical: bool


def choice_of(said: str) -> tuple[SchemeChoice, str]:
    """Return the scheme and the optimizer of `muloco:every=30@muon`."""
    text, _, optimizer = said.partition("@")
    return SchemeChoice.parse(text.replace("+", ",")), optimizer or OPTIMIZER


def schemes_in(text: str) -> list[str]:
    """Return the schemes of a list, as they are written.

    Raises:
        ArgumentTypeError: A scheme does not exist, or does not take its options.
    """
    names = text.split(",")
    for name in names:
        try:
            choice_of(name)
        except ValueError as error:
            raise ArgumentTypeError(f"{name}: {error}") from error
    return names


def train(said: str, seed: int, training: Training) -> Trained:
    """Train once."""
    choice, optimizer = choice_of(said)
    learners = training.learners(optimizer, seed)
    model_bytes = 4 * learners[training.members[0]].gradient.numel()
    with controller(training.members, model_bytes, choice.scheme.codec) as where:
        ends = training.run(where, learners, choice)
        moved = _moved(where)
    loss = learners[training.members[0]].evaluate()["test_loss"]
    rounds = {rounds for _, rounds in ends}
    alike = len({digest for digest, _ in ends}) == 1
    return Trained(said, seed, loss, mean(moved.values()), max(moved.values()), rounds.pop(), alike)


def _member(control: str, name: str, model: Learner, choice: SchemeChoice, training: Training) -> tuple[str, int]:
    with sync.join(control, name, "127.0.0.1") as session:
        parts = RoundTraining(session, model.parameters, training.batch, moments=model.moments)
        strategy: sync.Strategy = choice.scheme.algorithm.build(choice.options, parts)
        for _ in range(training.steps):
            model.compute()
            strategy.before_step()
            model.apply()
            strategy.after_step()
        strategy.settle()
        session.finish(model.digest())
        return model.digest(), session.rounds


def _moved(where: Controller) -> dict[str, int]:
    """Return the bytes that each member sent and received in all its rounds."""
    moved: dict[str, int] = {}
    for line in (where.out / "rounds.jsonl").read_text().splitlines():
        report = json.loads(line)
        both = int(report["sent_bytes"]) + int(report["received_bytes"])
        moved[report["member"]] = moved.get(report["member"], 0) + both
    return moved


def compare(trained: Sequence[Trained], scheme: str) -> dict[str, Any]:
    """Compare a scheme with all-reduce, seed by seed."""
    base = {one.seed: one for one in trained if one.scheme == BASELINE}
    ours = [one for one in trained if one.scheme == scheme]
    difference, spread = interval([one.loss / base[one.seed].loss - 1 for one in ours])
    return {
        "scheme": scheme,
        "loss": mean(one.loss for one in ours),
        "above_all_reduce": difference,
        "above_all_reduce_interval": spread,
        "rounds": ours[0].rounds,
        "mean_bytes": mean(one.mean_bytes for one in ours),
        "most_bytes": max(one.most_bytes for one in ours),
        "ratio": mean(one.mean_bytes for one in base.values()) / mean(one.mean_bytes for one in ours),
        "ratio_of_most": mean(one.most_bytes for one in base.values()) / mean(one.most_bytes for one in ours),
    }


def main() -> int:
    """Train and print. Returns 1 where members end with different parameters."""
    parser = Options(__doc__)
    parser.add_argument(
        "--schemes",
        type=schemes_in,
        default=SCHEMES,
        help="with commas between, + between options (default %(default)s)",
    )
    parser.add_draws((1, 2, 3), quick=1)
    parser.add_argument("--members", type=positive, default=8)
    parser.add_steps(450, quick=120)
    parser.add_argument("--batch", type=positive, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--model", default="gpt-small", choices=("gpt-small", "gpt", "gpt-medium"))
    parser.add_argument("--dataset", default="text", choices=("text", "documentation"))
    parser.add_argument("--rank", type=int, default=0, help="of the updates that matrices learn (default: whole)")
    args = parser.parse()
    if args.dataset == "documentation":
        described()  # or an error that says how to prepare it
    torch.set_num_threads(1)
    members = tuple(f"m{number}" for number in range(args.members))
    training = Training(args.model, members, args.steps, args.batch, args.learning_rate, args.dataset, args.rank)
    schemes = [BASELINE, *args.schemes]
    trained = []
    for seed in args.seeds:
        for scheme in schemes:
            trained.append(train(scheme, seed, training))
            one = trained[-1]
            progress(f"seed {seed}, {scheme}: loss {one.loss:.4f}, {one.mean_bytes:,.0f} bytes a member")
    compared = [compare(trained, scheme) for scheme in schemes]
    columns = ("scheme", "loss", "above all-reduce's", "rounds", "bytes a member", "ratio", "of the most")
    rows = [
        [
            one["scheme"],
            f"{one['loss']:.4f}",
            f"{one['above_all_reduce']:+.1%}"
            + (f" ± {half:.1%}" if (half := one["above_all_reduce_interval"]) < inf else ""),
            str(one["rounds"]),
            f"{one['mean_bytes']:,.0f}",
            f"{one['ratio']:.0f} ×",
            f"{one['ratio_of_most']:.0f} ×",
        ]
        for one in compared
    ]
    rank = f" of rank {args.rank}" if args.rank else ""
    kind = f"{args.model}{rank} on {args.dataset}"
    title = f"{kind}, {len(members)} members of batch {args.batch}, {args.steps} steps, {len(args.seeds)} seeds"
    figures = {"repeats": len(args.seeds), "steps": args.steps, "schemes": compared}
    figures["trainings"] = [asdict(one) for one in trained]
    show([Table(title, columns, rows)], figures, as_json=args.json)
    return 0 if all(one.identical for one in trained) else 1


if __name__ == "__main__":
    run_program(main)
