"""A connection over a path with a delay of seconds, in the guest, where the import of PyTorch takes 15 s."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.guest

#: A round trip takes 3.2 s; the SYNs that are sent again during it must not replace the connection. The packages'
#: __init__ modules are not run, so PyTorch is not imported.
PROGRAM = """
import socket, subprocess, sys, threading
from importlib.util import find_spec, module_from_spec
for package in ("testbed.sync", "testbed.sync.transport"):
    sys.modules[package] = module_from_spec(find_spec(package))
from testbed.sync.transport import sockets
for command in ("ip link set lo up", "tc qdisc add dev lo root netem delay 1600ms"):
    subprocess.run(command.split(), check=True)
with socket.create_server(("127.0.0.1", 0)) as listener:
    with sockets.connect(listener.getsockname(), 40.0, threading.Event()) as connection:
        assert connection.getpeername() == listener.getsockname() and connection.getblocking()
"""


def test_a_handshake_may_take_seconds() -> None:
    subprocess.run(["unshare", "--net", sys.executable, "-c", PROGRAM], check=True, timeout=PATIENCE_S)
