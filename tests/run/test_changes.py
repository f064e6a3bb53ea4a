"""A worker that is added while a run trains: what is told, and to whom, and what stays where it can't be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from testbed.api.requests import AddWorker, ApiProblem, ForcePolicy, RecordLaunch
from testbed.cli.tables import print_swap
from testbed.controller.client import ControllerClient, ControllerError
from testbed.controller.model.spec import Newcomer
from testbed.emulation.testbed import Testbed
from testbed.protocol import Job
from testbed.run.changes import Changes
from testbed.run.live_run import LiveRun, LoopExecutor
from testbed.run.run_log import RunLog
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Topology, Worker
from tests.run.test_event_player import Recorder
from tests.spec.files import EXPERIMENT, TOPOLOGY, spoilt, write


class Growing(Recorder):
    """A testbed, its workers, and a controller that refuses with `refusal` unless that is empty."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology)
        self.refusal = ""
        self.members: list[str] = []

    @contextmanager
    def one_more(self, site: str) -> Iterator[Newcomer]:
        before, self.topology = self.topology, self.topology.with_worker(site)
        try:
            job = Job(3, workload={"shard": 4, "shards": 5})
            yield Newcomer(name=self.topology.last_worker(site).name, job=job)
        except BaseException:
            self.topology = before
            raise

    def add_member(self, newcomer: Newcomer, members: Any, links: Any, routes: Any) -> None:
        if self.refusal:
            raise ControllerError(self.refusal)
        assert {f"{newcomer.name}->tokyo", f"tokyo->{newcomer.name}"} <= set(links)
        assert ("paris-w0", newcomer.name) in routes
        self.members = [member.name for member in members]

    def address(self, worker: Worker) -> str:
        return f"an address of {worker.name}"

    def tell(self, kind: str, target: str, by: str, *, changed: Any = None) -> None:
        self.told.append((kind, target))


def changes_of(experiment: Experiment, recorder: Growing, ours: bool = True) -> Changes:
    every: Any = recorder
    ours_alone = every if ours else None
    return Changes(experiment, every, ours_alone, ours_alone, recorder.tell, lambda _: None)


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return Experiment.load(write(tmp_path, experiment={**EXPERIMENT, "elastic": {"quorum": 2}}))


@pytest.mark.pure
def test_the_controller_is_told_of_the_worker_and_of_the_network_with_it(experiment: Experiment) -> None:
    growing = Growing(experiment.topology)
    changes = changes_of(experiment, growing)
    record = {"worker": "tokyo-w1", "site": "tokyo", "address": "an address of tokyo-w1", "shard": 4, "shards": 5}
    assert changes.do(AddWorker(site="tokyo"), "hand") == record and changes.added == [record]
    assert growing.members == ["paris-w0", "paris-w1", "tokyo-w0", "tokyo-w1", "dallas-w0"]
    assert growing.told == [("add", "tokyo-w1")]


@pytest.mark.pure
def test_a_worker_that_the_controller_does_not_take_leaves_all_as_it_was(experiment: Experiment) -> None:
    growing = Growing(experiment.topology)
    growing.refusal = "the run is done"
    changes = changes_of(experiment, growing)
    with pytest.raises(ControllerError):
        changes.do(AddWorker(site="tokyo"), "hand")
    assert (growing.topology, growing.told, changes.added) == (experiment.topology, [], [])


@pytest.mark.local
def test_another_network_keeps_the_workers_that_were_added(
    experiment: Experiment, capsys: pytest.CaptureFixture[str]
) -> None:
    growing = Growing(experiment.topology)
    changes = changes_of(experiment, growing)
    changes.do(AddWorker(site="tokyo"), "hand")
    other = Topology.from_value(spoilt(TOPOLOGY, "name", to="other"), experiment.file)
    print_swap("other", changes.swap(other, "other.yaml", "file"))
    assert capsys.readouterr().out == "  links added: x->y\nother in force after 0.25 s\n"
    assert growing.topology.name == "other" and growing.topology.last_worker("tokyo").name == "tokyo-w1"


@pytest.mark.pure
@pytest.mark.parametrize(
    ("more", "site", "status", "why"),
    [
        ({}, "tokyo", 409, "`elastic: {quorum: 2}`"),
        ({"elastic": {"quorum": 2}}, "rome", 404, "rome"),
        ({"sync": {"strategy": "hop"}, "elastic": {"quorum": 2}}, "tokyo", 409, "hop"),
        ({"hosts": "all", "elastic": {"quorum": 2}}, "tokyo", 409, "`workers:`.*tokyo"),
    ],
)
def test_a_run_that_takes_nobody_says_what_to_do_instead(
    tmp_path: Path, more: dict[str, Any], site: str, status: int, why: str
) -> None:
    experiment = Experiment.load(write(tmp_path, experiment={**EXPERIMENT, **more}))
    growing = Growing(experiment.topology)
    run_log = cast(RunLog, SimpleNamespace(directory=SimpleNamespace(path=tmp_path)))
    controller, testbed = cast(ControllerClient, growing), cast(Testbed, growing)
    run = LiveRun(testbed, changes_of(experiment, growing), run_log, LoopExecutor(), controller)
    with pytest.raises(ApiProblem, match=why) as refused:
        run.do(AddWorker(site=site))
    assert refused.value.status == status and growing.told == []


@pytest.mark.pure
def test_where_members_are_not_ours_none_is_added(experiment: Experiment, tmp_path: Path) -> None:
    growing = Growing(experiment.topology)
    run_log = cast(RunLog, SimpleNamespace(directory=SimpleNamespace(path=tmp_path)))
    run = LiveRun(cast(Testbed, growing), changes_of(experiment, growing, ours=False), run_log, LoopExecutor(), None)
    for request in (
        AddWorker(site="tokyo"),
        RecordLaunch(kind="launch", target="three-1"),
        ForcePolicy(policy="mst"),
    ):
        with pytest.raises(ApiProblem) as caught:
            run.do(request)
        assert caught.value.status == 409
