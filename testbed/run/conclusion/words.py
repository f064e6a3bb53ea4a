"""What a run came to, in words for whoever waited for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.run.conclusion.verdict import SIMULATED
from testbed.spec.units import count
from testbed.telemetry.round_span import MEANING


def in_words(summary: Mapping[str, Any]) -> list[str]:
    """A line each, made of its `summary.json`."""
    if "not_judged" in summary:
        swaps = sum(swap["kind"] == "network" for swap in summary["swaps"])
        training = summary["training"]
        took = f"the command ended on all workers after {training['wall_seconds']:.0f} s"
        if (start_s := training.get("start_seconds") or 0.0) >= 1.0:
            took += f", of which {start_s:.0f} s were its start, before any byte went over a link"
        return [f"{took}; {count(swaps, 'network swap')}", *(f"not judged: {what}" for what in summary["not_judged"])]
    training, sync, swaps = summary["training"], summary["sync"], summary["swaps"]
    loss, accuracy = training["final_loss"], training["final_accuracy"]
    learned = [f"loss {loss:.4f}"] if loss is not None else []
    learned += [f"test accuracy {accuracy:.1%}"] if accuracy is not None else []
    seconds = sync["seconds_per_round"]
    ratios = {"lower bound, end to end": sync["ratio_to_lower_bound"], "bound without delays": sync["ratio_to_bound"]}
    told = [f"{ratio:.2f} times the {name}" for name, ratio in ratios.items() if ratio is not None]
    lost = sum(swap["lost_updates"] + swap["duplicated_updates"] for swap in swaps)
    kinds = [swap["kind"] for swap in swaps]
    gap, identical = sync.get("gap"), training["identical_parameters"]
    unit, end = "iteration" if gap else "round", "the workers' parameters DIFFER"
    if summary["verdict"] == SIMULATED and identical is None:
        end = "nothing was trained"
    elif identical:
        end = "all workers hold the same bits"
    elif gap and identical is None:
        end = f"no two workers were more than {gap['widest']} apart"
    return [
        "; ".join([f"{count(training['rounds'], unit)} in {training['wall_seconds']:.0f} s", *learned, end]),
        f"{unit}: {seconds['p50']:.2f} s at the median, {seconds['p95']:.2f} s at the 95th percentile"
        + ("" if gap else f" ({MEANING})"),
        *(["; ".join(told)] if told else []),
        f"{count(kinds.count('plan'), 'plan swap')}, {count(kinds.count('network'), 'network swap')}, "
        f"{count(lost, 'update')} lost or doubled",
    ]
