"""The API of the runs that one command makes: they follow each other at one port, with one token."""

from __future__ import annotations

import http.client
import io
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from testbed.api.entry import TOKEN, ApiPort
from testbed.api.requests import FAILED, ApiProblem, Stop
from testbed.api.server import ApiServer
from testbed.run import live_run
from testbed.run.errors import CannotRun, RunFailed
from testbed.run.live_run import LiveRun, LoopExecutor, RunControl, listen_for_page
from testbed.run.terminal.display import Display
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.local


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each page that was told of: whether a browser opens it."""
    found: list[bool] = []

    def show(page: Path, api_port: ApiPort) -> str:
        found.append(api_port.shown)
        return f"page: {page}"

    monkeypatch.setattr("testbed.run.live_run.show_in_browser", show)
    return found


@contextmanager
def run(folder: Path, display: Display) -> Iterator[Path]:
    """A run that serves its API, without a network. Yields its folder."""
    folder.mkdir()
    listen_for_page(display)
    run_log = MagicMock(display=display)
    with RunControl(MagicMock(), MagicMock(folder=folder), run_log, MagicMock(), None):
        yield folder


def test_a_wait_ends_although_calls_keep_coming() -> None:
    executor, made = LoopExecutor(), []

    def again() -> None:
        made.append(executor.submit(again))

    executor.submit(again)
    for seconds in (0.0, 0.02):
        executor.wait(seconds)
    assert len(made) > 1
    executor.shutdown()


@pytest.fixture(autouse=True)
def closed_at_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the sockets that commands keep to their end."""
    kept: list[socket.socket] = []

    def listening(server: ApiServer) -> socket.socket | None:
        if (found := original(server)) is not None:
            kept.append(found)
        return found

    original = ApiServer.listening
    monkeypatch.setattr(ApiServer, "listening", listening)
    yield
    for each in kept:
        each.close()


def status(port: int, token: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", "/api/v1/history", headers={"Authorization": f"Bearer {token}"})
    code = connection.getresponse().status
    connection.close()
    return code


def test_the_runs_of_a_command_have_one_port_and_token_and_one_open_page(tmp_path: Path, opened: list[bool]) -> None:
    said = io.StringIO()
    display = Display(Console(file=said, width=400), ApiPort(0, shown=True))
    known = []
    for name in ("one", "two"):
        with run(tmp_path / name, display) as folder:
            assert display.api_port is not None
            token = (folder / TOKEN).read_text().strip()
            known.append((display.api_port.port, token))
            assert status(*known[0]) not in (401, 403), "a page of the first run may ask"
            assert status(known[0][0], "another") in (401, 403)
        other = Display(Console(file=io.StringIO()), ApiPort(known[0][0]))
        with pytest.raises(CannotRun, match="another port"), run(tmp_path / f"beside-{name}", other):
            pass  # the port stays the command's between its runs
    assert known[0] == known[1]
    assert opened == [True, False]
    assert said.getvalue().count("page: ") == 2


def test_a_run_whose_page_can_t_be_written_ends_its_server_and_keeps_the_port(
    tmp_path: Path, opened: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("full")

    display = Display(Console(file=io.StringIO()), ApiPort(0))
    listen_for_page(display)
    control = RunControl(MagicMock(), MagicMock(folder=tmp_path), MagicMock(display=display), MagicMock(), None)
    with monkeypatch.context() as patched:
        patched.setattr("testbed.run.live_run.write_entry", fail)
        with pytest.raises(OSError, match="full"):
            control.__enter__()
    assert not control._server._thread.is_alive()
    with run(tmp_path / "next", display) as folder:
        assert display.api_port is not None and display.api_port.port == control._server.port
        assert (folder / TOKEN).exists()


def test_without_a_port_there_is_no_page(tmp_path: Path, opened: list[bool]) -> None:
    display = Display(Console(file=io.StringIO()))
    with run(tmp_path / "one", display) as folder:
        assert not (folder / TOKEN).exists()
    assert display.api_port is None and opened == []


def test_a_port_that_is_taken_ends_the_run(tmp_path: Path, opened: list[bool]) -> None:
    display = Display(Console(file=io.StringIO()), ApiPort(0))
    with run(tmp_path / "one", display):
        assert display.api_port is not None
        other = Display(Console(file=io.StringIO()), ApiPort(display.api_port.port))
        with pytest.raises(CannotRun, match="another port"), run(tmp_path / "two", other):
            pass


def test_of_a_long_run_the_newest_records_are_shown_and_what_was_done_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_run, "NEWEST_SHOWN", 2)
    monkeypatch.setattr(live_run.status, "sections", lambda *_: {})
    events: list[dict[str, Any]] = [{"at_s": float(number), "kind": "down", "target": "a->b"} for number in range(1, 7)]
    events[1]["by"] = "hand"
    run_log = MagicMock(events=events, plans={}, curves={}, status={"round": 9})
    run_log.directory.path = tmp_path
    (tmp_path / "decisions.jsonl").write_text(3 * '{"adopted": false}\n')
    controller = MagicMock()
    controller.rounds.side_effect = lambda since: [{"round": number} for number in range(since, 10)]
    state = LiveRun(MagicMock(), MagicMock(), run_log, LoopExecutor(), controller).state()
    assert {number: event["at_s"] for number, event in state["events"].items()} == {"2": 2.0, "5": 5.0, "6": 6.0}
    assert (list(state["rounds"]), list(state["decisions"])) == (["8", "9"], ["2", "3"])


def test_a_request_to_stop_has_its_answer_before_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(os, "kill", lambda _, number: done.append(number))
    changes = SimpleNamespace(stopped=False)
    control = RunControl(MagicMock(), MagicMock(folder=tmp_path), MagicMock(), changes, None)  # type: ignore[arg-type]
    control.wait(0.0)
    assert done == []
    control._executor.submit(setattr, changes, "stopped", True).add_done_callback(lambda _: done.append("answered"))
    control.wait(0.0)
    assert done == ["answered", signal.SIGTERM]


def test_a_time_limit_that_is_exceeded_during_a_request_ends_the_run(tmp_path: Path) -> None:
    def change(*_: object) -> None:
        raise RunFailed("a check took longer than 300 s", rule="timeout")

    changes = SimpleNamespace(stopped=False, do=change)
    control = RunControl(MagicMock(), MagicMock(folder=tmp_path), MagicMock(), changes, None)  # type: ignore[arg-type]
    asked = control._executor.submit(control._run.do, Stop(reason="enough"))
    with pytest.raises(RunFailed) as caught:
        control.wait(0.0)
    assert caught.value.rule == "timeout"
    problem = asked.exception(timeout=0)
    assert isinstance(problem, ApiProblem) and problem.status == FAILED
