"""Compare codecs with error feedback to fp32: the loss of a small GPT, the bytes sent, and the cost in processor time.

    python -m benchmarks.codecs [--codecs int8,bins4] [--costs]

Each seed trains the character GPT (0.83 M parameters) on the standard library's text once for each codec: the same
start and batches, two members with a session each over loopback, gradients every step. A row is a codec. Its mean
validation loss counts as fp32's if it lies in the 95 % confidence interval of fp32 (Student's t over the seeds). One
seed has no interval, and no codec is judged by it. The exit code is 1 where a codec misses that or members differ.

The second table has what each codec costs one processor: encoding and decoding a model of a million values, chunk by
chunk as rounds do. For `sparse` one value in 128 is not zero, and has one of four levels. `--costs` measures this table
alone.
"""

from __future__ import annotations

import time
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from statistics import mean, median
from typing import Any

import torch

from benchmarks.schemes import Training, choice_of
from benchmarks.support.controller import controller
from benchmarks.support.options import Options
from benchmarks.support.paired import interval
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from testbed.sync.codecs import Codec, by_name

MEMBERS = ("m0", "m1")
BASELINE = "fp32"
BATCH = 8
LEARNING_RATE = 1e-3

#: The codecs whose costs are measured: over a model of VALUES, in chunks of 256 KiB of float32, TURNS times.
COSTED = ("fp32", "fp16", "bf16", "int8", "topk:0.01", "bins4", "bins2", "sparse")
VALUES, CHUNK, TURNS = 1 << 20, 1 << 16, 9
THINNED = 128


@dataclass(frozen=True, slots=True)
class Outcome:
    """One training: the bytes that it sent and its validation loss."""

    codec: str
    seed: int
    loss: float
    sent_bytes: int
    identical: bool


def train(codec: str, seed: int, steps: int, model: str) -> Outcome:
    """Train once, with both members in this process."""
    training = Training(model, MEMBERS, steps, BATCH, LEARNING_RATE)
    choice, optimizer = choice_of("gradients")
    learners = training.learners(optimizer, seed)
    model_bytes = 4 * learners[MEMBERS[0]].gradient.numel()
    with controller(MEMBERS, model_bytes, codec) as where:
        digests = {digest for digest, _ in training.run(where, learners, choice)}
        sent = where.sent_bytes()
    return Outcome(codec, seed, learners[MEMBERS[0]].evaluate()["test_loss"], sent, len(digests) == 1)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a codec for a million values: milliseconds of one processor, and bytes for each value."""

    codec: str
    encode_ms: float
    decode_ms: float
    bytes_per_value: float


def cost(name: str) -> Cost:
    """Return the median cost over TURNS turns, after one that is left out."""
    codec = by_name(name)
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(VALUES, generator=generator)
    if name == "sparse":
        kept = torch.rand(VALUES, generator=generator) < 1 / THINNED
        values = values.sign() * torch.where(values.abs() > 1, 3.0, 1.0) * kept
    turns = [_turn(codec, torch.split(values, CHUNK)) for _ in range(TURNS + 1)][1:]
    millions = VALUES / 1e6
    encode, decode = (median(its) * 1000 / millions for its in ([t[0] for t in turns], [t[1] for t in turns]))
    return Cost(name, encode, decode, turns[0][2] / VALUES)


def _turn(codec: Codec, chunks: Sequence[torch.Tensor]) -> tuple[float, float, int]:
    """Return the seconds to encode and to decode all chunks, and their bytes."""
    began = time.perf_counter()
    coded = [codec.encode(chunk) for chunk in chunks]
    between = time.perf_counter()
    for data, chunk in zip(coded, chunks, strict=True):
        codec.decode(data, len(chunk))
    return between - began, time.perf_counter() - between, sum(map(len, coded))


def compare(outcomes: Sequence[Outcome], codec: str) -> dict[str, Any]:
    """Compare a codec with fp32, seed by seed. `inside` is None for one seed, which has no interval."""
    base = {one.seed: one for one in outcomes if one.codec == BASELINE}
    ours = [one for one in outcomes if one.codec == codec]
    centre, half = interval([one.loss for one in base.values()])
    difference, spread = interval([one.loss - base[one.seed].loss for one in ours])
    loss = mean(one.loss for one in ours)
    return {
        "codec": codec,
        "loss": loss,
        "difference": difference,
        "difference_interval": spread,
        "inside": None if half == inf else abs(loss - centre) <= half,
        "bytes_ratio": sum(one.sent_bytes for one in ours) / sum(one.sent_bytes for one in base.values()),
    }


def codecs_in(text: str) -> list[str]:
    """Return the codecs of a list such as `int8,bins4`.

    Raises:
        ArgumentTypeError: There is no such codec.
    """
    names = text.split(",")
    for name in names:
        try:
            by_name(name)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from error
    return names


def main() -> int:
    """Train and print. Returns 1 where a codec misses its claim or members differ."""
    parser = Options(__doc__)
    parser.add_argument(
        "--codecs",
        type=codecs_in,
        default="int8",
        help="codecs, with commas between; fp32 is always measured (default %(default)s)",
    )
    parser.add_draws((1, 2, 3, 4, 5), quick=2)
    parser.add_steps(120, quick=20)
    parser.add_argument("--model", default="gpt", choices=("gpt-small", "gpt"))
    parser.add_argument(
        "--costs", action="store_true", help="measure the processor time of codecs only, without training"
    )
    args = parser.parse()
    torch.set_num_threads(1)
    codecs = [BASELINE, *args.codecs]
    costs = [cost(name) for name in COSTED]
    if args.costs:
        show([_table_of(costs)], {"costs": [asdict(one) for one in costs]}, as_json=args.json)
        return 0
    outcomes = []
    for seed in args.seeds:
        for codec in codecs:
            outcomes.append(train(codec, seed, args.steps, args.model))
            progress(f"seed {seed}, {codec}: validation loss {outcomes[-1].loss:.4f}")
    centre, half = interval([one.loss for one in outcomes if one.codec == BASELINE])
    compared = [compare(outcomes, codec) for codec in codecs[1:]]
    rows = [[BASELINE, f"{centre:.4f} ± {half:.4f}", "", "100.0 %", ""]]
    rows += [
        [
            one["codec"],
            f"{one['loss']:.4f}",
            f"{one['difference']:+.4f} ± {one['difference_interval']:.4f}",
            f"{one['bytes_ratio'] * 100:.1f} %",
            {True: "yes", False: "no", None: ""}[one["inside"]],
        ]
        for one in compared
    ]
    columns = ("codec", "validation loss", "difference to fp32, paired", "bytes, of fp32's", "in fp32's interval")
    title = f"{args.model}, {args.steps} steps, {len(args.seeds)} seeds, {len(MEMBERS)} members"
    figures = {
        "repeats": len(args.seeds),
        "steps": args.steps,
        "fp32": {"loss": centre, "interval": half},
        "codecs": compared,
    }
    figures["trainings"] = [asdict(one) for one in outcomes]
    figures["costs"] = [asdict(one) for one in costs]
    show([Table(title, columns, rows), _table_of(costs)], figures, as_json=args.json)
    return 0 if all(one.identical for one in outcomes) and all(one["inside"] is not False for one in compared) else 1


def _table_of(costs: Sequence[Cost]) -> Table:
    rows = [[one.codec, f"{one.encode_ms:.2f}", f"{one.decode_ms:.2f}", f"{one.bytes_per_value:.3f}"] for one in costs]
    return Table(
        "Milliseconds of one processor for a million values", ("codec", "encode", "decode", "bytes a value"), rows
    )


if __name__ == "__main__":
    run_program(main)
