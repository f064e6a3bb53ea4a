"""Runs whose truth is known: a loss curve, what steps are worth, what rounds take. The conductor knows none of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp

import numpy as np

from testbed.planning.conductor import (
    Candidate,
    SchemeCatalog,
    Situation,
    TrainedHistory,
    choose,
    learn,
)
from testbed.schemes import TRAITS

MEMBERS = 8

SCHEMES = SchemeCatalog(TRAITS)
FLAT = SCHEMES.flat

#: What codecs leave of a round's exchange.
PARTS = {"fp32": 1.0, "fp16": 0.5, "int8": 0.26, "bins4": 0.13, "bins2": 0.07, "sparse": 0.025}


@dataclass(frozen=True)
class Truth:
    """A step takes `compute_s`, an exchange of what is not encoded `exchange_s`; members that go on by themselves have
    nothing more to learn after about `horizon` steps, an outer optimizer makes `outer` of what they changed, and codecs
    leave `coded` of it."""

    compute_s: float
    exchange_s: float
    horizon: float
    outer: Mapping[str, float] = field(default_factory=lambda: {"local_sgd": 1.0, "diloco": 1.0, "sparseloco": 0.7})
    noise: float = 0.02
    coded: Mapping[str, float] = field(default_factory=lambda: {"int8": 0.998, "bins4": 0.93, "bins2": 0.7})

    def exchanges(self) -> dict[str, float]:
        return {codec: self.exchange_s * part for codec, part in PARTS.items()}

    def worth(self, candidate: Candidate) -> float:
        """Return the worth of a step beside one of flat all-reduce."""
        coded = 1.0 if candidate.scheme == "sparseloco" else self.coded.get(candidate.codec, 1.0)
        if candidate.scheme == FLAT.scheme:
            return coded
        x = (candidate.steps - 1) / self.horizon
        return coded * self.outer[candidate.scheme] * (1 - exp(-x)) / x

    def loss(self, worth: float) -> float:
        return 1.3 + 3.0 * (1 + worth / 30) ** -0.6


@dataclass
class Conducted:
    """How it went: the candidates in force in turn, each from a step on, and when the run had done how much."""

    chosen: list[tuple[int, Candidate]]
    seconds: float = 0.0
    worth: float = 0.0
    steps: int = 0

    @property
    def last(self) -> Candidate:
        return self.chosen[-1][1]


def conduct(truth: Truth, steps: int, seed: int = 0) -> Conducted:
    """Run N steps. The conductor chooses after each round of several steps, and after each fourth of one step."""
    draw = np.random.default_rng(seed)
    history, done, current, rounds = TrainedHistory(), Conducted([(0, FLAT)]), FLAT, 0
    while done.steps < steps:
        count = min(current.steps, steps - done.steps)
        before = truth.loss(done.worth)
        agreed, own = before + draw.normal() * truth.noise, truth.loss(done.worth + count) + draw.normal() * truth.noise
        done.worth += count * truth.worth(current)
        done.steps += count
        done.seconds += count * truth.compute_s + truth.exchanges()[current.codec]
        rounds += 1
        history.add(current, done.steps, MEMBERS, agreed, own if current.steps > 1 else None)
        if current.steps == 1 and rounds % 4:
            continue
        situation = Situation(
            compute_s=truth.compute_s,
            exchange_s=truth.exchanges(),
            exchange_off=0.1,
            current=current,
            rounds=rounds,
            steps=done.steps,
            steps_left=steps - done.steps,
            elapsed_s=done.seconds,
            margin=0.1,
        )
        verdict = choose(situation, learn(history.stretches, SCHEMES), SCHEMES.candidates())
        if verdict.change:
            current, rounds = verdict.candidate, 0
            done.chosen.append((done.steps, current))
    return done
