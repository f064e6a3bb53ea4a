"""The users of a machine that can connect to a member's socket."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.controller.runs import mesh, running, spec_of

pytestmark = pytest.mark.system

#: Another user's program that connects to the socket that is its argument.
KNOCKS = """
import socket, sys
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
    print("let in")
except PermissionError:
    print("kept out")
"""


@pytest.mark.tour
async def test_another_user_of_the_machine_is_kept_out() -> None:
    def knock(path: Path) -> str:
        command = [str(Path(sys.executable).resolve()), "-c", KNOCKS, str(path)]
        return subprocess.run(command, user=65534, group=65534, capture_output=True, text=True, check=True).stdout

    with tempfile.TemporaryDirectory(prefix="sockets-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        async with running(spec_of(mesh()), folder):
            assert await asyncio.to_thread(knock, folder / "s/a-w0/control.sock") == "kept out\n"
            (folder / "s").chmod(0o755)  # as where a member's own folder is mounted
            assert await asyncio.to_thread(knock, folder / "s/a-w0/control.sock") == "let in\n"
