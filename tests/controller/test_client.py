"""Errors about a controller that does not answer as it should."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from testbed.controller.client import ControllerClient, ControllerError, ControllerFailedError

pytestmark = pytest.mark.local


@pytest.mark.parametrize(
    ("said", "error", "named"),
    [
        (b'{"answer": {"state": "run', ControllerFailedError, r"owner\.sock"),  # it is killed as it answers
        (b'{"failed": "KeyError()"}', ControllerFailedError, "KeyError"),
    ],
)
def test_a_controller_that_does_not_answer_differs_from_one_that_refuses(
    said: bytes, error: type[ControllerError], named: str, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "owner.sock"))
        server.listen()

        def answer() -> None:
            with server.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(error, match=named):
            ControllerClient(tmp_path / "owner.sock").status()
        thread.join()
