"""A network that is kept up, as far as it is not built."""

from __future__ import annotations

import socket
from contextlib import nullcontext
from pathlib import Path

import pytest

from testbed.api.server import PortTaken
from testbed.emulation.daemon import subject
from testbed.emulation.daemon.subject import serve_network

pytestmark = pytest.mark.local


def test_a_port_that_is_taken_is_refused_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    class Building(nullcontext[None]):
        def __init__(self, *_: object, name: str, **__: object) -> None:
            self.name = name

        def __enter__(self) -> None:
            built.append(self.name)

    monkeypatch.setattr(subject, "Testbed", Building)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        network = serve_network(
            Path("line"), name="line", backend="auto", workers="namespaces", step=lambda _: nullcontext(), port=port
        )
        with pytest.raises(PortTaken), network:
            pass
    assert built == []
