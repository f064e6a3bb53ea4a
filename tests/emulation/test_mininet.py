"""The distribution's Mininet, found from an environment that does not see the distribution's packages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import testbed
from testbed.errors import CANNOT

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


OWN = """
import sys
import testbed.emulation
sys.modules["mininet"] = None
from testbed.emulation.daemon.owner import main
sys.exit(main())
"""


def test_the_owner_of_a_network_reports_that_it_is_missing_before_any_step() -> None:
    command = [sys.executable, "-c", OWN, "--name", "without-mininet", "topologies/quickstart.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    (line,) = done.stdout.splitlines()
    told = json.loads(line)
    assert told["code"] == done.returncode == CANNOT, done.stderr
    assert "mininet" in told["failed"]
