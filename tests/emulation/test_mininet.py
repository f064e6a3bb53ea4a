"""The distribution's Mininet, found from an environment that does not see the distribution's packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import testbed

pytestmark = pytest.mark.local

LOOK = """
import sys
sys.path[:] = [path for path in sys.path if "dist-packages" not in path]
sys.path.insert(0, {root!r})
import importlib.util
import testbed.emulation
assert importlib.util.find_spec("mininet") and "mininet" in sys.modules
from mininet.util import quietRun
print(quietRun.__module__)
"""


def test_it_is_found_where_the_environment_has_none_and_brings_no_other_package() -> None:
    root = str(Path(testbed.__file__).parents[1])
    look = LOOK.format(root=root) + 'assert "yaml" not in sys.modules\n'
    # -S: no site packages at all, so nothing but Mininet can come from the distribution.
    done = subprocess.run([sys.executable, "-S", "-c", look], capture_output=True, text=True, check=False)
    assert done.stdout == "mininet.util\n", done.stderr
