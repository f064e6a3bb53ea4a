"""Unix sockets with long paths can be listened on and connected to."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from testbed.sockets import unix_address

pytestmark = pytest.mark.local

#: What the kernel takes of a path.
ADDRESS_BYTES = 107


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_path_of_any_length_is_bound_and_connected_to(tmp_path: Path) -> None:
    folder = tmp_path / ("n" * 100) / ("m" * 100)
    folder.mkdir(parents=True)
    path = folder / "a.sock"
    assert len(str(path)) > ADDRESS_BYTES
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as connection:
        before = open_files()
        with unix_address(path) as short:
            listening.bind(short)
        listening.listen()
        with unix_address(path) as short:
            connection.connect(short)
        assert open_files() == before
        listening.accept()[0].close()
    assert path.is_socket()


def test_one_without_a_folder_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), unix_address(tmp_path / "none" / "a.sock"):
        pass
