"""The cells of `benchmarks.systems`: the networks, the systems that train over them, and the script that they train."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

SCRIPT = Path(__file__).parents[3] / "examples" / "gpt.py"
TOPOLOGIES = Path(__file__).parents[3] / "topologies"

#: The rates that two cores carry beside nine members, as in `benchmarks.allreduce`.
NETSTORM_SCALE = 0.4

#: Local steps in a round, of every system with local steps.
EVERY = 32


def scaled(value: Any, folder: Path, factor: float) -> Any:
    """Return a topology file's value with all traces' rates times `factor`, and their paths from `folder`."""
    if isinstance(value, Mapping):
        inner = {key: scaled(its, folder, factor) for key, its in value.items()}
        return {**inner, "file": str(folder / value["file"]), "scale": factor} if "file" in value else inner
    return [scaled(its, folder, factor) for its in value] if isinstance(value, list) else value


def lossy() -> dict[str, Any]:
    """Return a topology of two members at each end of a long path that loses one packet in a thousand."""
    return {
        "name": "lossy",
        "sites": {"west": {"workers": 2}, "east": {"workers": 2}},
        "links": [{"between": ["west", "east"], "rate": "100mbit", "rtt": "200ms", "loss": "0.1%"}],
    }


def _of_file(name: str, factor: float) -> Callable[[], dict[str, Any]]:
    return lambda: dict(scaled(yaml.safe_load((TOPOLOGIES / f"{name}.yaml").read_text()), TOPOLOGIES, factor))


#: The values of the topology files, by the network's name; eight, nine and four members.
NETWORKS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "quickstart": _of_file("quickstart", 1.0),
    "netstorm9": _of_file("netstorm9", NETSTORM_SCALE),
    "lossy": lossy,
}

#: The unchanged script; and the package of programs that do its work as a system's documentation says.
UNCHANGED = (str(SCRIPT),)
CHANGED = "benchmarks.support.systems"


@dataclass(frozen=True, slots=True)
class System:
    """Words after `python`, options of `testbed launch`, and the modules and entry points of PyTorch that it needs."""

    words: Sequence[str]
    options: Sequence[str] = ()
    modules: Sequence[str] = ()
    entry_points: Sequence[str] = ()

    def missing(self, python: str) -> str:
        """Return why the system can't be measured with an interpreter; empty if it can be."""
        lines = ["import importlib.metadata", *(f"import {module}" for module in self.modules)]
        lines += [f"importlib.metadata.entry_points(group='torch.backends')[{name!r}]" for name in self.entry_points]
        done = subprocess.run([python, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
        return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def _by(scheme: str) -> System:
    return System(UNCHANGED, ("--scheme", scheme), ("testbed.sync",), ("testbed_scheme",))


#: All systems by name: the unchanged script by DDP over gloo and over our backend, other people's systems, and ours.
SYSTEMS: Mapping[str, System] = {
    "gloo": System(UNCHANGED),
    "wan": System(UNCHANGED, ("--backend", "wan"), ("testbed.sync",), ("testbed",)),
    "post_local_sgd": System(("-m", f"{CHANGED}.post_local_sgd")),
    "hivemind": System(("-m", f"{CHANGED}.hivemind_averaging"), modules=("hivemind",)),
    "torchft": System(("-m", f"{CHANGED}.torchft_local_sgd"), modules=("torchft",)),
    "local_sgd": _by(f"local_sgd:every={EVERY}"),
    "diloco": _by(f"diloco:every={EVERY}"),
}

#: Systems that nothing here drives, with the reason and their authors' claim.
NOT_MEASURED: Mapping[str, str] = {
    "pccl": "its package pypccl was on no package index that was asked; its authors claim up to 45 Gbit/s across "
    "Europe, and 25 Gbit/s across North America and Europe (arXiv 2505.14065, abstract)"
}


def missing(names: Sequence[str], python: str = sys.executable) -> dict[str, str]:
    """Return the systems that can't be measured with an interpreter, with the reasons."""
    reasons = {name: SYSTEMS[name].missing(python) for name in names}
    return {name: reason for name, reason in reasons.items() if reason}


def script() -> ModuleType:
    """Load examples/gpt.py as a module, without running it."""
    spec = spec_from_file_location("gpt", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def own_address() -> str:
    """Return this worker's address on the emulated network, as `testbed launch` names it."""
    peers = dict(peer.split("=") for peer in os.environ["TESTBED_PEERS"].split(","))
    return peers[os.environ["TESTBED_WORKER"]]
