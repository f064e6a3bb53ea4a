"""Any error that a Docker client raises becomes a text for the user."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import docker.errors
import pytest
import requests
import urllib3

from testbed.emulation.containers import engine
from testbed.emulation.errors import ending_of
from testbed.errors import CANNOT

ERRORS = [
    docker.errors.DockerException("x"),
    docker.errors.APIError("x"),
    docker.errors.NotFound("x"),
    docker.errors.NullResource("x"),
    docker.errors.InvalidVersion("x"),
    docker.errors.BuildError("x", iter(())),
    docker.errors.ContainerError(None, 1, "x", "image", b""),  # type: ignore[no-untyped-call]
    docker.errors.StreamParseError("x"),  # type: ignore[no-untyped-call]
    requests.ConnectionError("x"),
    requests.ReadTimeout("x"),
    requests.exceptions.ChunkedEncodingError("x"),
    requests.exceptions.JSONDecodeError("x", "", 0),
    urllib3.exceptions.ProtocolError("x"),
    urllib3.exceptions.ReadTimeoutError(None, None, "x"),  # type: ignore[arg-type]
    engine.EngineError("x"),
]


@pytest.mark.pure
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_each_error_of_a_client_is_the_machines(error: Exception) -> None:
    assert isinstance(error, engine.ENGINE_ERRORS)
    error.add_note("and then something else")
    code, text = ending_of(error)
    assert code == CANNOT
    assert text.endswith("and then something else")


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[str]:
    """Yield the address of an engine that accepts connections and closes them."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "engine.sock"))
        listener.listen()
        yield f"unix://{tmp_path}/engine.sock"


@pytest.mark.local
@pytest.mark.parametrize("version", ["1.41", None])
def test_a_socket_that_vanishes_is_an_engine_that_is_gone(silent: str, version: str | None) -> None:
    Path(silent.removeprefix("unix://")).unlink()
    with pytest.raises(engine.ENGINE_ERRORS):
        engine.client_of(silent, version=version).ping()
    with pytest.raises(engine.EngineGoneError):
        engine.client_of(silent, version="1.41").containers.list()


@pytest.mark.local
def test_an_engine_that_does_not_answer_in_time_is_gone(silent: str) -> None:
    with pytest.raises(engine.EngineGoneError):
        engine.client_of(silent, version="1.41", timeout=0.1).images.get("x")
