"""The output that an engine passes on of a program in a container."""

from __future__ import annotations

import errno
import os
import socketserver
import struct
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import docker
import pytest
from requests.exceptions import HTTPError

from testbed.emulation.process import ProcessIdentity
from testbed.launch import BadCommand
from testbed.launch.program import ContainerCommand, ContainerProgram, HostStarter
from testbed.launch.ranks import Rank

pytestmark = pytest.mark.local

STDOUT, STDERR = 1, 2

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\n"
REFUSAL = b'HTTP/1.1 409 Conflict\r\nContent-Length: 24\r\n\r\n{"message":"is stopped"}'


def frame(output: int, said: bytes) -> bytes:
    return struct.pack(">BxxxL", output, len(said)) + said


class Engine(socketserver.UnixStreamServer):
    """Answers what it is asked, whatever that is, in one piece: what a busy engine's client finds when it comes to
    read, of a program that has ended by then. No real engine can be made to."""

    answer = b""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), Answer)


class Answer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        length = 0
        while line := self.rfile.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        self.rfile.read(length)
        assert isinstance(self.server, Engine)
        self.request.sendall(self.server.answer)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with Engine(tmp_path / "engine") as engine:
        thread = Thread(target=engine.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield engine
        engine.shutdown()
        thread.join()


@pytest.fixture
def client(engine: Engine) -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(base_url=f"unix://{engine.server_address!s}", version="1.41")
    yield client
    client.close()


def test_nothing_that_a_program_says_is_lost_beside_the_head_of_the_answer(
    engine: Engine, client: docker.DockerClient
) -> None:
    long = bytes(range(256)) * 1000
    engine.answer = HEAD + frame(STDERR, b"Traceback\n") + frame(STDOUT, long)
    assert list(ContainerProgram(client, "id", "oslo-w0", ContainerCommand(["train"])).output()) == [
        b"Traceback\n",
        long,
    ]


def test_a_program_that_says_nothing_has_no_output(engine: Engine, client: docker.DockerClient) -> None:
    engine.answer = HEAD
    assert list(ContainerProgram(client, "id", "oslo-w0", ContainerCommand(["train"])).output()) == []


def test_an_engine_that_refuses_is_an_error(engine: Engine, client: docker.DockerClient) -> None:
    engine.answer = REFUSAL
    with pytest.raises(HTTPError, match="409"):
        ContainerProgram(client, "id", "oslo-w0", ContainerCommand(["train"]))


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        (255, None, "ended with exit code 255"),
        (200, None, "ended with exit code 200"),
        (1, None, "ended with exit code 1"),
        (137, None, "ended with exit code 137, as after signal 9 (SIGKILL)"),
        (137, 137 << 8, "ended with exit code 137"),
        (137, 9, "was ended by signal 9 (SIGKILL)"),
        (139, 11 | 0x80, "was ended by signal 11 (SIGSEGV)"),
    ],
)
def test_an_exit_code_above_128_is_called_a_signal_only_where_it_is_known_to_be_one(
    code: int, status: int | None, said: str
) -> None:
    assert ContainerCommand(["train"]).how_it_ended(code, status) == said


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EAGAIN, OSError), (errno.EMFILE, OSError), (errno.ENOENT, BadCommand)]
)
def test_a_machine_that_starts_no_process_is_no_fault_of_the_command(
    number: int, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), "train")

    monkeypatch.setattr("testbed.launch.program.inside", refuse)
    holder = ProcessIdentity(1, 1)
    starter = HostStarter("net", "launch", {"oslo-w0": ["train"]}, {"oslo-w0": holder})
    with pytest.raises(kind):
        starter.start(Rank("oslo-w0", "oslo-w0", {}))
