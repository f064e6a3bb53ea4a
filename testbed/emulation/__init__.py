"""The emulated network: Mininet nodes, worker containers, shaped links, trace replay and clean-up."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

#: The folder of Debian's and Ubuntu's `python3-*` packages and Mininet, which needs no other package of them.
DISTRIBUTION = Path("/usr/lib/python3/dist-packages")


def find_mininet() -> bool:
    """Return whether `import mininet` works, after adding the distribution's Mininet if the environment has none.

    No other package of the distribution is added, because it could hide one of the environment's.
    """
    if importlib.util.find_spec("mininet") is not None:
        return True
    folder = DISTRIBUTION / "mininet"
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
