"""Asking the process that keeps a network up, over its socket."""

from __future__ import annotations

import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed.emulation import label
from testbed.emulation.requests import (
    LinkRequest,
    Reply,
    Request,
    RequestFailed,
    RequestRefused,
    RequestServer,
    StatusRequest,
    SwapRequest,
    ask,
    standing,
)

pytestmark = pytest.mark.unit


@contextmanager
def listening(answer: Callable[[Request], Reply]) -> Iterator[Path]:
    with label.labelled("one") as folder, RequestServer("one", answer):
        yield folder / "owner.sock"


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label, "STATE_ROOT", tmp_path / "s")


@pytest.mark.parametrize(
    "request_",
    [
        StatusRequest(),
        LinkRequest(link="paris->tokyo", values={"rate": "5mbit"}),
        LinkRequest(link="paris->tokyo", up=False),
        SwapRequest(file=Path("/there.yaml")),
    ],
)
def test_a_request_arrives_as_it_was_sent(request_: Request) -> None:
    got: list[Request] = []

    def answer(request: Request) -> Reply:
        got.append(request)
        return Reply(value={"seen": [1.5, None, "größer"]})

    with listening(answer):
        assert standing() == ["one"]
        assert ask("one", request_) == {"seen": [1.5, None, "größer"]}
    assert got == [request_]
    assert standing() == []


def test_a_refusal_is_not_a_failure() -> None:
    answers = iter([Reply(refused="no link rome->oslo"), Reply(failed="the core has gone"), Reply(value={})])
    with listening(lambda _: next(answers)):
        with pytest.raises(RequestRefused, match="rome->oslo"):
            ask("one", StatusRequest())
        with pytest.raises(RequestFailed, match="the core has gone"):
            ask("one", StatusRequest())
        assert ask("one", StatusRequest()) == {}


def test_requests_are_served_one_after_the_other_in_one_thread() -> None:
    threads: set[int] = set()

    def answer(_: Request) -> Reply:
        threads.add(threading.get_ident())
        return Reply()

    with listening(answer):
        askers = [threading.Thread(target=ask, args=("one", StatusRequest())) for _ in range(8)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
    assert len(threads) == 1


def test_only_its_owner_may_ask() -> None:
    with listening(lambda _: Reply()) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("sent", [b"", b"\n", b"status\n", b'{"verb": "stop"}\n', b"\xff\xfe\n", b'{"verb": "link"}\n'])
def test_nonsense_is_refused_and_the_next_is_served(sent: bytes) -> None:
    with listening(lambda _: Reply(value={"well": True})) as path:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            assert b'"refused":"this testbed does not know' in connection.makefile("rb").read()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))  # and goes without a word
        assert ask("one", StatusRequest()) == {"well": True}


def test_nobody_there() -> None:
    with pytest.raises(RequestFailed, match="the network one does not answer"):
        ask("one", StatusRequest())
