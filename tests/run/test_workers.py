"""A worker that dies again and again: when its container is started anew, and how the run ends that needs it."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
from docker.errors import APIError, ImageNotFound, NotFound
from requests import ConnectionError, Response

from testbed.emulation.containers.fleet import ContainerRequest, Fleet
from testbed.emulation.errors import ending_of
from testbed.emulation.testbed import Testbed
from testbed.errors import CANNOT
from testbed.run import workers
from testbed.run.directory import RunDirectory
from testbed.run.errors import CannotRun, RunFailed
from testbed.run.jobs import Jobs
from testbed.run.watchdog import Watchdog
from testbed.run.workers import LONGEST_PAUSE_S, MOST_RESTARTS, STEADY_S, RestartBackoff, Workers
from testbed.spec.experiment import ElasticSection
from tests.cli.standing import write
from tests.waiting import PATIENCE_S

MARK = f"t{os.getpid()}-workers"


def refusal(status: int) -> APIError:
    """As the engine's client raises it."""
    response = Response()
    response.status_code = status
    return APIError("refused", response)


class StandIn:
    """In the place of a fleet with lima-w0, which has ended: methods raise what is to go wrong with them, in turn."""

    def __init__(self, **wrong: list[Exception]) -> None:
        self._wrong = wrong
        self._runs = False

    def kill(self, _: str) -> None:
        self._go_wrong("kill")

    def running(self) -> dict[str, bool]:
        self._go_wrong("running")
        return {"lima-w0": self._runs}

    def exit_code(self, _: str) -> None:
        return None

    def death(self, _: str) -> str:
        return "with exit code 3"

    def logs(self, _: str) -> bytes:
        raise NotFound("no such container")

    def restart(self, _: ContainerRequest) -> int:
        self._runs = True
        self._go_wrong("restart")
        return os.getpid()

    def _go_wrong(self, method: str) -> None:
        if self._wrong.get(method):
            raise self._wrong[method].pop(0)


def crew_of(fleet: StandIn, directory: Path) -> Workers:
    """Those of a run with lima-w0 in it, in a fleet that stands in for one."""
    (directory / "logs").mkdir()
    request = SimpleNamespace(worker=SimpleNamespace(name="lima-w0"))
    network = SimpleNamespace(leave=lambda _: None, join=lambda _: None)
    return Workers(
        cast(Testbed, SimpleNamespace(network=network)),
        cast(Fleet, fleet),
        cast(Jobs, SimpleNamespace(requests=lambda _: [request])),
        ElasticSection(quorum=1),
        cast(RunDirectory, SimpleNamespace(path=directory)),
    )


@pytest.mark.local
@pytest.mark.parametrize("status", [404, 409])
def test_one_that_is_dead_already_can_be_killed(tmp_path: Path, status: int) -> None:
    crew = crew_of(StandIn(kill=[refusal(status), refusal(500)]), tmp_path)
    crew.kill("lima-w0")
    with pytest.raises(APIError):
        crew.kill("lima-w0")


@pytest.mark.local
@pytest.mark.parametrize(
    ("wrong", "said", "not_said"),
    [
        (refusal(500), "Check the limits", "Call the command again"),
        (ImageNotFound("No such image: testbed-worker:1"), "Call the command again", "limits"),
    ],
)
def test_an_engine_that_starts_no_container_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: APIError, said: str, not_said: str
) -> None:
    crew = crew_of(StandIn(), tmp_path)
    monkeypatch.setattr(crew, "_testbed", SimpleNamespace(start=Mock(side_effect=wrong)))
    with pytest.raises((CannotRun, ImageNotFound)) as caught:
        crew.start()
    code, text = ending_of(caught.value)
    assert code == CANNOT
    assert said in text and not_said not in text


@pytest.mark.local
@pytest.mark.parametrize("runs", [False, True])
def test_a_worker_that_ends_before_it_is_attached_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    fleet = StandIn()
    fleet._runs = runs
    crew = crew_of(fleet, tmp_path)
    monkeypatch.setattr(workers, "NOTICED_S", 0.0)
    monkeypatch.setattr(crew, "_testbed", SimpleNamespace(start=Mock(side_effect=ProcessLookupError)))
    with pytest.raises(ProcessLookupError if runs else RunFailed) as caught:
        crew.start()
    assert runs or str(caught.value) == "lima-w0 ended before it joined, with exit code 3"


@pytest.mark.local
def test_a_worker_whose_container_is_gone_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LOOK_S", 0.0)
    assert crew_of(StandIn(), tmp_path).look() == ["lima-w0"]


@pytest.mark.local
def test_an_engine_that_is_away_for_a_moment_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LOOK_S", 0.0)
    monkeypatch.setattr(workers, "FIRST_PAUSE_S", 0.0)
    crew = crew_of(StandIn(restart=[ConnectionError(), refusal(500)]), tmp_path)
    assert [crew.look() for _ in range(4)] == [[], [], ["lima-w0"], []]


@pytest.mark.local
def test_an_engine_that_is_away_while_workers_join_is_asked_again(tmp_path: Path) -> None:
    crew = crew_of(StandIn(running=[ConnectionError()]), tmp_path)
    watchdog = SimpleNamespace(status=lambda: None)
    with pytest.raises(RunFailed) as caught:
        crew.wait_until_joined(cast(Watchdog, watchdog))
    assert (caught.value.rule, caught.value.member) == ("ended", "lima-w0")


@pytest.mark.tour
@pytest.mark.system
def test_one_that_dies_at_its_start_is_named_with_its_exit_code_and_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(workers, "MOST_RESTARTS", 2)
    monkeypatch.setattr(workers, "LOOK_S", 0.0)
    topology = write(tmp_path, "pair", {"quito": 1, "lima": 1}, ("quito", "lima", "20mbit", "10ms"))
    directory = RunDirectory("pair", tmp_path / "runs")
    program = ["-c", "import time; time.sleep(600)"]
    with closing(Testbed(topology, name=MARK)) as testbed:
        testbed.open()
        testbed.build()
        fleet = Fleet.connected(testbed.name, testbed.control)
        requests = [
            ContainerRequest(worker, program, entrypoint=["python3"]) for worker in testbed.network.topology.workers
        ]
        jobs = cast(Jobs, SimpleNamespace(requests=lambda _: requests))
        crew = Workers(testbed, fleet, jobs, ElasticSection(quorum=1), directory)
        crew.start()
        assert crew.look() == []
        program[1] = "print('it has no use', flush=True); raise SystemExit(3)"
        crew.kill("lima-w0")
        deadline = time.monotonic() + PATIENCE_S
        with pytest.raises(RunFailed) as raised:
            while time.monotonic() < deadline:
                crew.look()
                time.sleep(0.05)
        assert fleet.running()["quito-w0"]
        crew.end()
    assert (raised.value.rule, raised.value.member) == ("restarts", "lima-w0")
    assert "exit code 3" in str(raised.value) and str(raised.value).endswith("\nit has no use")
    assert (directory.path / "logs" / "lima-w0.log").read_text().count("it has no use") == 2
    directory.close()


def pause(restarts: RestartBackoff, now: float) -> float:
    """Seconds from a death to the moment for another start, to the tenth."""
    restarts.died(now)
    return next(tenths / 10 for tenths in range(1000) if restarts.due(now + tenths / 10))


@pytest.mark.pure
def test_pauses_double_up_to_the_longest_until_it_has_died_too_often() -> None:
    restarts, now, pauses = RestartBackoff(), 100.0, []
    while True:
        restarts.died(now)
        if restarts.over:
            break
        pauses.append(pause(restarts, now))
        restarts.started(now := now + pauses[-1])
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    assert len(pauses) == MOST_RESTARTS
    assert not restarts.due(now + 1e6)


@pytest.mark.pure
def test_a_death_that_is_seen_twice_is_one() -> None:
    restarts = RestartBackoff()
    for now in (1.0, 2.0, 3.0):
        restarts.died(now)
    assert restarts.due(3.0)


@pytest.mark.pure
def test_one_that_ran_for_long_is_started_at_once_again() -> None:
    restarts = RestartBackoff()
    for now in (1.0, 2.0, 5.0):
        restarts.died(now)
        restarts.started(now)
    assert pause(restarts, 5.0 + STEADY_S) == 0.0
