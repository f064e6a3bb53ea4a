"""The networks of `benchmarks.systems`, as files that `testbed launch` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

TOPOLOGIES = Path(__file__).parents[3] / "topologies"

#: What two cores carry with nine members on them, as in `benchmarks.allreduce`.
NETSTORM_SCALE = 0.4

#: Local steps to a round, of every system that takes any.
EVERY = 32


def scaled(value: Any, folder: Path, factor: float) -> Any:
    """A topology file's value, with all traces' rates times `factor`, and their paths from `folder`."""
    if isinstance(value, Mapping):
        inner = {key: scaled(its, folder, factor) for key, its in value.items()}
        return {**inner, "file": str(folder / value["file"]), "scale": factor} if "file" in value else inner
    return [scaled(its, folder, factor) for its in value] if isinstance(value, list) else value


def lossy() -> dict[str, Any]:
    """Two members at each end of a long path that loses a packet of a thousand."""
    return {
        "name": "lossy",
        "sites": {"west": {"workers": 2}, "east": {"workers": 2}},
        "links": [{"between": ["west", "east"], "rate": "100mbit", "rtt": "200ms", "loss": "0.1%"}],
    }


def _of_file(name: str, factor: float) -> Callable[[], dict[str, Any]]:
    return lambda: dict(scaled(yaml.safe_load((TOPOLOGIES / f"{name}.yaml").read_text()), TOPOLOGIES, factor))


#: What a topology file has, by the network's name; eight, nine and four members.
NETWORKS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "quickstart": _of_file("quickstart", 1.0),
    "netstorm9": _of_file("netstorm9", NETSTORM_SCALE),
    "lossy": lossy,
}
