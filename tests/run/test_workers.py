"""A worker that dies again and again: when its container is started anew, and how the run ends that needs it."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from testbed.emulation.containers.fleet import ContainerRequest, Fleet
from testbed.emulation.testbed import Testbed
from testbed.run import restarts, workers
from testbed.run.directory import RunDirectory
from testbed.run.errors import RunFailed
from testbed.run.jobs import Jobs
from testbed.run.workers import Workers
from testbed.spec.experiment import ElasticSection
from tests.cli.standing import write

MARK = f"t{os.getpid()}-workers"
DEADLINE_S = 300.0


@pytest.mark.privileged
@pytest.mark.timeout(600)
def test_one_that_dies_at_its_start_is_named_with_its_exit_code_and_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(restarts, "MOST_RESTARTS", 2)
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
        deadline = time.monotonic() + DEADLINE_S
        with pytest.raises(RunFailed) as raised:
            while time.monotonic() < deadline:
                crew.look()
                time.sleep(0.05)
        assert fleet.running()["quito-w0"]
        crew.end()
    assert str(raised.value) == (
        "lima-w0 was started anew 2 times, and died again, with exit code 3; its log ends with:\nit has no use"
    )
    assert (directory.path / "logs" / "lima-w0.log").read_text().count("it has no use") == 2
    directory.close()
