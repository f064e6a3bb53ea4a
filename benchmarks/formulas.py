"""Compare schemes with all-reduce by their formulas alone, without the library that carries them out elsewhere.

    make documentation; python -m benchmarks.formulas [--rules 'muloco, every 10 | sparseloco']

All members are in one process, without sessions, plans, relays or threads: each scheme is the few lines of its formula,
over the library's codecs. A loss as far off here as in `benchmarks.schemes` is the scheme's at this size. The inner
learning rate rises over 50 steps and falls by a cosine to a tenth, as in published runs. The text is the documentation,
of which no member sees anything twice in fewer than 6,000 steps of batch 4.

A row is a rule. It has the loss over the held-out windows after thirds of the steps, and how far it is above
all-reduce's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import cos, pi

import torch
from torch import Tensor

from benchmarks.support.options import Options, positive
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from testbed.emulation.containers.documentation import DOCUMENTATION, described
from testbed.schemes.decoupled_diloco.syncer import radial
from testbed.schemes.sparseloco import compressed
from testbed.sync.codecs import Codec, by_name
from testbed.sync.strategies.periodic import Nesterov
from testbed.worker import data, learner, models, optimizer

BASELINE = "all-reduce"
WARM_UP, LEAST_RATE = 50, 0.1


@dataclass
class Members:
    """The members' shards of the documentation, and one model that holds each member's parameters in turn."""

    name: str
    count: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        self._data = data.documentation(DOCUMENTATION.parent)
        self._model = models.build(self.name, self._data.classes, data.CONTEXT, self.seed)
        self.parameters, self.gradient = learner.flatten(self._model)
        self.shapes = [parameter.shape for parameter in self._model.parameters()]
        self.matrices = learner.hidden_matrices(self._model)
        generator = torch.Generator().manual_seed(self.seed)
        self._order = torch.randperm(len(self._data.inputs), generator=generator)

    def compute(self, member: int, step: int, parameters: Tensor) -> Tensor:
        """Return the gradient of a member's batch in a step, at these parameters. The next call overwrites it."""
        self.parameters.copy_(parameters)
        self.gradient.zero_()
        shard = self._order[member :: self.count]
        chosen = shard[torch.arange(step * self.batch, (step + 1) * self.batch) % len(shard)]
        scores = self._model(self._data.inputs[chosen])
        models.loss(self._model, scores, self._data.targets[chosen]).backward()  # type: ignore[no-untyped-call]
        return self.gradient

    def loss(self, parameters: Tensor) -> float:
        """Return the loss over the held-out windows."""
        self.parameters.copy_(parameters)
        with torch.inference_mode():
            scores = self._model(self._data.test_inputs)
            return models.loss(self._model, scores, self._data.test_targets).item()


@dataclass
class Rule:
    """A scheme: after `every` steps it merges the members' changes into the anchor, a fragment at a time."""

    every: int
    inner: str = "adamw"
    fragments: int = 1

    def begin(self, members: Members) -> None:
        """Create the rule's state for these members."""

    def merged(self, here: slice, changes: Sequence[Tensor]) -> Tensor:
        """Return the step to subtract from the anchor in this slice, given the members' changes there."""
        raise NotImplementedError

    def average_moments(self, number: int, inside: Sequence[optimizer.Optimizer]) -> None:
        """Average what the members' optimizers keep, after merge `number`; by default nothing."""


@dataclass
class SparseLoCo(Rule):
    """SparseLoCo: e ← βe + Δ, q = Q(top-k of each chunk of e), e ← e − q, then the mean of q.

    With `senders` the mean is over the members that sent the value, otherwise over all. With `clip` no member's tensor
    has a larger norm in the mean than the median of the members'.
    """

    every: int = 30
    top_k: int = 64
    decay: float = 0.95
    senders: bool = True
    clip: bool = True
    errors: list[Tensor] = field(default_factory=list)

    def begin(self, members: Members) -> None:
        """Start all members without an error, and keep the parameters' shapes."""
        self.errors = [torch.zeros_like(members.parameters) for _ in range(members.count)]
        self._shapes = members.shapes

    def merged(self, here: slice, changes: Sequence[Tensor]) -> Tensor:
        """Add each change to its member's error, and return the mean of what the codec takes out of the errors."""
        sizes = [shape.numel() for shape in self._shapes]
        sent = []
        for error, change in zip(self.errors, changes, strict=True):
            error.mul_(self.decay).add_(change)
            parts = zip(torch.split(error, sizes), self._shapes, strict=True)
            sent.append([compressed(part.view(shape), self.top_k, 64, 2).flatten() for part, shape in parts])
            error.sub_(torch.cat(sent[-1]))
        means = []
        for parts_of_all in zip(*sent, strict=True):
            values = torch.stack(parts_of_all)
            count = (values != 0).sum(0).clamp_min(1) if self.senders else len(values)
            if self.clip:
                norms = values.norm(dim=1, keepdim=True)
                values *= (norms.median() / norms.clamp_min(1e-30)).clamp_max(1)
            means.append(values.sum(0) / count)
        return torch.cat(means)


@dataclass
class DesLoc(Rule):
    """DES-LOC: the mean of the parameters in each round, and of Adam's moments in each `first`-th and `second`-th."""

    first: int = 3
    second: int = 6

    def merged(self, here: slice, changes: Sequence[Tensor]) -> Tensor:
        """Return the mean change."""
        return torch.stack(list(changes)).mean(0)

    def average_moments(self, number: int, inside: Sequence[optimizer.Optimizer]) -> None:
        """Average the moments that are due."""
        first, second = zip(*(one.moments() for one in inside), strict=True)
        for period, moments in ((self.first, first), (self.second, second)):
            if not number % period:
                mean = torch.stack(moments).mean(0)
                for moment in moments:
                    moment.copy_(mean)


@dataclass
class Quantized(Rule):
    """DiLoCo's outer Nesterov step with a codec, and error feedback of `decay` in front of the codec.

    Both directions are coded: each member's change, and what is sent back. That is the mean change (MuLoCo) or, with
    `steps`, the anchor's step (Decoupled DiLoCo, with all members in each merge).
    """

    codec: str = "fp32"
    decay: float = 0.0
    outer: Nesterov = field(default_factory=lambda: Nesterov(0.7, 0.9))
    steps: bool = False

    def begin(self, members: Members) -> None:
        """Start all members, the way back and the momentum with zeros."""
        zeros = torch.zeros_like(members.parameters)
        self._left = [zeros.clone() for _ in range(members.count)]
        self._left_back, self._momentum = zeros.clone(), zeros.clone()

    def merged(self, here: slice, changes: Sequence[Tensor]) -> Tensor:
        """Return the outer step of the coded changes, coded again on the way back."""
        codec = by_name(self.codec)
        sent = [self._through(codec, left[here], change) for left, change in zip(self._left, changes, strict=True)]
        mean = radial([(1.0, one) for one in sent]) if self.steps else torch.stack(sent).mean(0)
        if not self.steps:
            mean = self._through(codec, self._left_back[here], mean)
        moved = torch.zeros_like(mean)
        self.outer.step(moved, mean, self._momentum[here])
        return self._through(codec, self._left_back[here], -moved) if self.steps else -moved

    def _through(self, codec: Codec, left: Tensor, change: Tensor) -> Tensor:
        asked = change + self.decay * left
        sent = codec.decode(codec.encode(asked), len(asked)).clone()
        left.copy_(asked - sent)
        return sent


RULES: Mapping[str, Callable[[], Rule | None]] = {
    BASELINE: lambda: None,
    "diloco, every 24": lambda: Quantized(24),
    "muloco, every 10": lambda: Quantized(10, "muon", codec="bins2", decay=0.9, outer=Nesterov(0.8, 0.9)),
    "muloco, every 30": lambda: Quantized(30, "muon", codec="bins2", decay=0.9, outer=Nesterov(0.8, 0.9)),
    "4 bits, every 24": lambda: Quantized(24, fragments=4, codec="bins4", decay=1.0, steps=True),
    "sparseloco": lambda: SparseLoCo(),
    "sparseloco, the older form": lambda: SparseLoCo(15, top_k=32, decay=0.999, senders=False, clip=False),
    "des_loc, every 8": lambda: DesLoc(8),
    "des_loc, every 30": lambda: DesLoc(30),
}


def train(rule: Rule | None, members: Members, steps: int, learning_rate: float, each: int) -> dict[int, float]:
    """Return the loss after every `each` steps, and after the last."""
    anchor = members.parameters.clone()
    held = [anchor.clone() for _ in range(members.count)]
    inner = rule.inner if rule is not None else "adamw"
    inside = [optimizer.make(inner, learning_rate, members.matrices) for _ in held]
    if rule is not None:
        rule.begin(members)
    found = {}
    for step in range(steps):
        for one in inside:
            one.learn_at(learning_rate * rate(step, steps))
        if rule is None:
            mean = torch.stack([members.compute(member, step, anchor).clone() for member in range(members.count)]).mean(
                0
            )
            inside[0].step(anchor, mean)
        else:
            for member, (own, one) in enumerate(zip(held, inside, strict=True)):
                one.step(own, members.compute(member, step, own))
            last = step + 1 == steps and rule.fragments == 1
            due, late = divmod(step + 1, rule.every // rule.fragments)
            if not late or last:
                number = (due - 1) % rule.fragments
                size = len(anchor)
                here = slice(size * number // rule.fragments, size * (number + 1) // rule.fragments)
                anchor[here] -= rule.merged(here, [anchor[here] - own[here] for own in held])
                for own in held:
                    own[here] = anchor[here]
                rule.average_moments(due, inside)
        if (step + 1) % each == 0 or step + 1 == steps:
            found[step + 1] = members.loss(anchor)
    return found


def rate(step: int, steps: int) -> float:
    """Return the factor on the learning rate in a step."""
    falling = LEAST_RATE + (1 - LEAST_RATE) * (1 + cos(pi * step / steps)) / 2
    return min(1.0, (step + 1) / WARM_UP) * falling


def main() -> int:
    """Train and print."""
    parser = Options(__doc__)
    parser.add_argument("--rules", help=f"rules, with | between (default: all): {' | '.join(RULES)}")
    parser.add_argument("--members", type=positive, default=8, help="members (default %(default)s)")
    parser.add_argument("--batch", type=positive, default=4, help="samples of a member's step (default %(default)s)")
    parser.add_steps(1000, quick=120)
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="the inner optimizer's (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of model and shards (default %(default)s)")
    parser.add_argument("--model", default="gpt-small", choices=("gpt-small", "gpt", "gpt-medium"))
    args = parser.parse()
    asked = [name.strip() for name in args.rules.split("|")] if args.rules else list(RULES)
    if unknown := [name for name in asked if name not in RULES]:
        parser.error(f"--rules: there is no rule {unknown[0]!r}; the rules are {' | '.join(RULES)}")
    described()  # or an error that says how to prepare it
    torch.set_num_threads(1)
    steps = args.steps
    found: dict[str, dict[int, float]] = {}
    for name in dict.fromkeys((BASELINE, *asked)):
        members = Members(args.model, args.members, args.batch, args.seed)
        found[name] = train(RULES[name](), members, steps, args.learning_rate, max(1, steps // 3))
        progress(f"{name}: {found[name]}")
    rows = [
        [name, *(f"{loss:.3f} ({loss / found[BASELINE][at] - 1:+.1%})" for at, loss in losses.items())]
        for name, losses in found.items()
    ]
    columns = ["rule", *(f"after {at} steps" for at in found[BASELINE])]
    title = f"{args.model}, {args.members} members of batch {args.batch}: loss, and how far above all-reduce's"
    show([Table(title, columns, rows)], {"repeats": 1, "steps": steps, "losses": found}, as_json=args.json)
    return 0


if __name__ == "__main__":
    run_program(main)
