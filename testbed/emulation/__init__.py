"""The emulated network: Mininet nodes, containers as hosts, shaped links, the replay of traces, and clean-up."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

#: Where Debian and Ubuntu put `python3-*` and Mininet; Mininet is Python alone and needs no other package of theirs.
DISTRIBUTION = Path("/usr/lib/python3/dist-packages")


def find_mininet(distribution: Path = DISTRIBUTION) -> bool:
    """Return whether `import mininet` works, after taking it from the distribution's packages where it must be.

    Mininet alone is taken: other packages of the distribution could hide those of the environment.
    """
    if importlib.util.find_spec("mininet") is not None:
        return True
    folder = distribution / "mininet"
    if not (folder / "net.py").exists():
        return False
    spec = importlib.util.spec_from_file_location(
        "mininet", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        return False
    module = importlib.util.module_from_spec(spec)
    sys.modules["mininet"] = module
    spec.loader.exec_module(module)
    return True


find_mininet()  # before any module of this package is imported: several import Mininet
