"""What the heuristic goes by, as arrays: links, computing power and labels of the members 0..n−1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.planning.constraints import GOODPUT
from testbed.planning.view import View

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Problem:
    """`s_per_byte` and `rtt_s` are (n, n), infinite where there is no edge, 0 on the diagonal.

    `step_s` is the time of one local step, `steps` how many a member takes in a round, `weights` its part of the
    samples (adding up to 1), `labels` its samples by label (n, number of labels; none where they are not known).
    """

    names: tuple[str, ...]
    sites: Ints
    model_bytes: float
    s_per_byte: Floats
    rtt_s: Floats
    step_s: Floats
    steps: Ints
    weights: Floats
    labels: Floats

    @classmethod
    def of(
        cls,
        view: View,
        step_s: float,
        every: int,
        labels: Mapping[str, Sequence[float]],
        steps: Mapping[str, int] | None = None,
    ) -> Problem:
        """A view's problem, where a step takes `step_s` seconds at speed 1 and the fastest member does `every`.

        The others do as many as they can in that time, at least one: h_i = clip(round(T·c_i/B), 1, every); or all do
        the `steps` that are given.
        """
        names = view.names
        number = {name: i for i, name in enumerate(names)}
        s_per_byte, rtt_s = (np.full((len(names), len(names)), np.inf) for _ in range(2))
        for (source, target), edge in view.edges.items():
            pair = number[source], number[target]
            s_per_byte[pair] = 8 / (edge.rate_bps * GOODPUT)
            rtt_s[pair] = edge.rtt_s
        np.fill_diagonal(s_per_byte, 0)
        np.fill_diagonal(rtt_s, 0)
        speed = np.array([member.speed for member in view.members])
        known = {site: i for i, site in enumerate(view.sites())}
        counts = np.array([labels[name] for name in names], dtype=float) if labels else np.ones((len(names), 0))
        usual = np.clip(np.rint(every * speed / speed.max()), 1, every).astype(np.int64)
        samples = counts.sum(axis=1) if labels else np.ones(len(names))
        return cls(
            names=names,
            sites=np.array([known[member.site] for member in view.members]),
            model_bytes=float(view.model_bytes),
            s_per_byte=s_per_byte,
            rtt_s=rtt_s,
            step_s=step_s / speed,
            steps=np.array([steps[name] for name in names]) if steps else usual,
            weights=samples / samples.sum(),
            labels=counts,
        )

    def __len__(self) -> int:
        return len(self.names)
