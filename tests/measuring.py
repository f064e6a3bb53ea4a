"""How tests marked `physics` judge what they measure: by an interval, from the fewest repeats that decide."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: Every judgement is a line of this file, so that a drift over days can be seen. In the guest kernel, where the
#: checkout cannot be written, TESTBED_PHYSICS names another file, whose lines are appended to this one afterwards.
RESULTS = Path(os.environ.get("TESTBED_PHYSICS", ROOT / "build" / "physics.jsonl"))

#: How sure an interval of the median is. Looking after every sample, the chance of a wrong judgement adds up to some
#: percent where the median lies on a bound itself; bounds are tolerances, and medians lie well inside or outside.
CONFIDENCE = 0.98


def judge(sample: Callable[[], float], low: float, high: float, unit: str, most: int = 25) -> float:
    """Sample until the interval of the median lies in [low, high], and return the median.

    Args:
        sample: Measures once.
        low: The least that the median may be, in `unit`.
        high: The most that the median may be, in `unit`.
        unit: The unit of all three, for the record and the error.
        most: Samples after which an interval that still reaches over a bound fails, too.

    Raises:
        AssertionError: The interval lies outside [low, high], or is undecided after `most` samples.
    """
    samples: list[float] = []
    inside = outside = False
    while not (inside or outside) and len(samples) < most:
        samples.append(sample())
        least, greatest = interval(samples)
        inside = low <= least and greatest <= high
        outside = greatest < low or least > high
    median = sorted(samples)[len(samples) // 2]
    record(low, high, unit, samples, inside)
    verdict = f"between {least:.4g} and {greatest:.4g} {unit} by {len(samples)} samples"
    assert inside, f"the median is {verdict}; it should be within {low:.4g} and {high:.4g}: {samples}"
    return median


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """Return an interval that holds the median with CONFIDENCE, by the samples' order alone; (-inf, inf) for too few.

    The number of samples below the median is binomial with p = 1/2, whatever the distribution (David and Nagaraja,
    Order Statistics, 7.1). Six samples or fewer decide nothing.
    """
    n, ordered = len(samples), sorted(samples)
    tail, outer = 0.0, 0
    while (tail := tail + math.comb(n, outer) / 2**n) <= (1 - CONFIDENCE) / 2:
        outer += 1
    return (ordered[outer - 1], ordered[n - outer]) if outer else (-math.inf, math.inf)


def record(low: float, high: float, unit: str, samples: Sequence[float], passed: bool) -> None:
    """Append a judgement to RESULTS."""
    commit = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    line = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "commit": commit,
        "test": os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0],
        **{"low": low, "high": high, "unit": unit, "samples": list(samples), "passed": passed},
    }
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as results:
        results.write(json.dumps(line) + "\n")
