"""What is said of a controller that does not answer as it should."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from testbed.controller.client import AdminClient, AdminError

pytestmark = pytest.mark.local


def test_a_controller_that_is_killed_as_it_answers_is_one_that_does_not(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "admin.sock"))
        server.listen()

        def answer() -> None:
            with server.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(AdminError, match="IncompleteRead"):
            AdminClient(tmp_path / "admin.sock").status()
        thread.join()
