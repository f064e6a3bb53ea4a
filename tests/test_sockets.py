"""Addresses: Unix sockets with long paths can be listened on and connected to, and texts of hosts with ports."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

import pytest

from testbed.sockets import host_and_port, unix_address

pytestmark = pytest.mark.local

#: What the kernel takes of a path.
ADDRESS_BYTES = 107


def open_below(folder: Path) -> list[Path]:
    """Return the files in `folder` that this process has open. Threads of earlier tests may close others meanwhile."""
    found = list[Path]()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            found.append(descriptor.readlink())
    return [path for path in found if path.is_relative_to(folder)]


def test_a_path_of_any_length_is_bound_and_connected_to(tmp_path: Path) -> None:
    folder = tmp_path / ("n" * 100) / ("m" * 100)
    folder.mkdir(parents=True)
    path = folder / "a.sock"
    assert len(str(path)) > ADDRESS_BYTES
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as connection:
        with unix_address(path) as short:
            assert open_below(tmp_path) == [folder]
            listening.bind(short)
        listening.listen()
        with unix_address(path) as short:
            connection.connect(short)
        assert open_below(tmp_path) == []
        listening.accept()[0].close()
    assert path.is_socket()


def test_one_without_a_folder_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), unix_address(tmp_path / "none" / "a.sock"):
        pass


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("paris.example:7000", ("paris.example", 7000)),
        ("[::1]:1", ("::1", 1)),
        ("h:65535", ("h", 65_535)),
        *(
            (text, None)
            for text in ("h", "h:", ":1", "[]:1", "[:1", " :1", "h:0", "h:65536", "h:-1", "h:1x", "h:²", "a..b:1")
        ),
    ],
)
def test_the_host_and_the_port_of_a_text(text: str, found: tuple[str, int] | None) -> None:
    assert host_and_port(text) == found


def test_a_port_of_thousands_of_digits_is_none() -> None:
    assert host_and_port("h:" + "1" * 5000) is None
