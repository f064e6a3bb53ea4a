"""An experiment as small as one can be, for what has to end it before its time: two sites with a worker each."""

from __future__ import annotations

import json
from pathlib import Path

TOPOLOGY = {
    "name": "pair",
    "sites": {"quito": {"workers": 1}, "lima": {"workers": 1}},
    "links": [{"between": ["quito", "lima"], "rate": "20mbit", "delay": "5ms"}],
}
#: More rounds than there is time for.
EXPERIMENT = {
    "name": "pair",
    "topology": "pair-topology.yaml",
    "train": {"model": "cnn", "batch": 16, "rounds": 100_000},
    "compute": {"step_time": "100ms"},
}


def endless(folder: Path) -> str:
    """The experiment's file, written into a folder."""
    (folder / "pair-topology.yaml").write_text(json.dumps(TOPOLOGY))
    file = folder / "pair.yaml"
    file.write_text(json.dumps(EXPERIMENT))
    return str(file)
