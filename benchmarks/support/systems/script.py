"""examples/gpt.py as a module: what systems build upon whose users have to change their script."""

from __future__ import annotations

import os
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).parents[3] / "examples" / "gpt.py"


def script() -> ModuleType:
    """The script, loaded and not run."""
    spec = spec_from_file_location("gpt", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def own_address() -> str:
    """This worker's on the emulated network, as `testbed launch` says it."""
    peers = dict(peer.split("=") for peer in os.environ["TESTBED_PEERS"].split(","))
    return peers[os.environ["TESTBED_WORKER"]]
