"""The systems of `benchmarks.systems`: how each trains examples/gpt.py, and what it needs to be there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.support.systems.networks import EVERY
from benchmarks.support.systems.script import SCRIPT

#: The script as it is; and programs that do its work as a system's documentation has it.
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
        """Why it can't be measured with an interpreter; empty where it can be."""
        lines = ["import importlib.metadata", *(f"import {module}" for module in self.modules)]
        lines += [f"importlib.metadata.entry_points(group='torch.backends')[{name!r}]" for name in self.entry_points]
        done = subprocess.run([python, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
        return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def _by(scheme: str) -> System:
    return System(UNCHANGED, ("--scheme", scheme), ("testbed.sync",), ("testbed_scheme",))


#: All systems by name: the script unchanged by DDP over gloo and over our backend, those that others made, and ours.
SYSTEMS: Mapping[str, System] = {
    "gloo": System(UNCHANGED),
    "wan": System(UNCHANGED, ("--backend", "wan"), ("testbed.sync",), ("testbed",)),
    "post_local_sgd": System(("-m", f"{CHANGED}.post_local_sgd")),
    "hivemind": System(("-m", f"{CHANGED}.hivemind_averaging"), modules=("hivemind",)),
    "torchft": System(("-m", f"{CHANGED}.torchft_local_sgd"), modules=("torchft",)),
    "local_sgd": _by(f"local_sgd:every={EVERY}"),
    "diloco": _by(f"diloco:every={EVERY}"),
}


def missing(names: Sequence[str], python: str = sys.executable) -> dict[str, str]:
    """Why systems can't be measured with an interpreter, of those that can't."""
    reasons = {name: SYSTEMS[name].missing(python) for name in names}
    return {name: reason for name, reason in reasons.items() if reason}
