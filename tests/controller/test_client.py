"""Errors about a controller that does not answer as it should."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from testbed.controller.client import ControllerClient, ControllerSilentError

pytestmark = pytest.mark.local


def test_a_controller_that_is_killed_as_it_answers_is_one_that_does_not(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "owner.sock"))
        server.listen()

        def answer() -> None:
            with server.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(b'{"answer": {"state": "run')

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ControllerSilentError, match=r"owner\.sock"):
            ControllerClient(tmp_path / "owner.sock").status()
        thread.join()
