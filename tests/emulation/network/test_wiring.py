"""Commands in the namespaces of nodes, over a recorder in a node's place."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.emulation.errors import EmulationError
from testbed.emulation.network.wiring import SINGLE_FRAMES, send_single_frames
from testbed.errors import CANNOT

pytestmark = pytest.mark.pure


def test_a_command_that_fails_in_a_node_is_a_machine_that_can_t() -> None:
    failed = subprocess.CompletedProcess(SINGLE_FRAMES, 1, stderr=b"no such feature\n")
    node: Any = SimpleNamespace(name="lima-w0", inside=lambda _: failed)
    with pytest.raises(EmulationError, match="feature") as caught:
        send_single_frames(node)
    assert (caught.value.exit_code, caught.value.member) == (CANNOT, "lima-w0")
