"""Changes of a running experiment: the file's events and people's requests, over a recorder in the network's place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from testbed.api.requests import WRONG, AddWorker, ApiProblem, ForcePlan, ForcePolicy, RecordLaunch, Request, Stop
from testbed.cli.tables import print_swap
from testbed.controller.client import ControllerClient, ControllerError, ControllerFailedError
from testbed.controller.model.spec import Newcomer
from testbed.emulation.network.routing import Routes
from testbed.emulation.network.swap import NetworkSwap
from testbed.emulation.shaping import ShapingError
from testbed.emulation.testbed import Testbed
from testbed.link import LinkState
from testbed.plan import Plan, Tree
from testbed.protocol import Job
from testbed.run.changes import Changes, EventPlayer
from testbed.run.errors import RunFailed
from testbed.run.live_run import LiveRun, LoopExecutor
from testbed.run.run_log import RunLog
from testbed.run.view import declared_states
from testbed.spec.event import LinkChange
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Link, Topology, Worker
from tests.spec.files import EXPERIMENT, TOPOLOGY, spoilt, write


class Recorder:
    """A testbed with its network, links and replay, and a controller, all in one list of what was asked."""

    def __init__(self, topology: Topology) -> None:
        self.said: list[Any] = []
        self.topology = topology
        self.routes = Routes.over(topology)
        self.down: set[str] = set()
        self.network = self.replay = self.links_in_force = self
        self.told: list[tuple[str, str]] = []
        self.swaps: list[dict[str, Any]] = []
        self.informed: list[tuple[Any, Any]] = []
        self.removed: list[str] = []

    def check(self, change: LinkChange) -> None: ...

    def change(self, change: LinkChange) -> LinkChange:
        self.said.append(("change", change.link, change.rate))
        return change

    def take(self, a: str, b: str, up: bool) -> None:
        self.said.append(("up" if up else "down", a, b))
        (self.down.difference_update if up else self.down.update)({f"{a}->{b}", f"{b}->{a}"})
        self.routes = Routes.over(self.topology, self.down)

    def swap(self, topology: Topology, before_routes: Callable[[set[str]], None]) -> NetworkSwap:
        before_routes({"x->y"})
        self.said.append(("swap", topology.name))
        self.topology = topology
        return NetworkSwap(("x->y",), ("y->z",), (), 0.25)

    def states(self) -> dict[str, LinkState]:
        """Every link at a rate of which no file says anything."""
        return {name: replace(state, rate_bps=7e6) for name, state in declared_states(self.topology).items()}

    def follow(self, links: Iterable[Link]) -> None:
        self.said.append(("follow", len(list(links))))

    def change_network(self, links: Any, routes: Any) -> None:
        self.said.append("inform")
        self.informed.append((links, routes))

    def kill(self, worker: str) -> None:
        self.said.append(("kill", worker))

    def tell(self, kind: str, target: str, by: str, *, changed: Any = None, removed: Sequence[str] = ()) -> None:
        self.removed += removed
        assert by == "file" and (changed is not None) == (kind == "change")
        self.told.append((kind, target))


def script(
    folder: Path, *events: dict[str, Any], of_command: bool = False, **settings: Any
) -> tuple[EventPlayer, Recorder]:
    other = spoilt(TOPOLOGY, "name", to="other")
    (folder / "other.yaml").write_text(yaml.safe_dump(other))
    given = spoilt(EXPERIMENT, "train", "rounds", to=4) | {**settings, "events": list(events)}
    values = {name: value for name, value in given.items() if value is not None}
    experiment = Experiment.load(write(folder, experiment=values))
    recorder = Recorder(experiment.topology)
    changes = Changes(
        experiment,
        recorder,  # type: ignore[arg-type]
        None if of_command else recorder,  # type: ignore[arg-type]
        None if of_command else recorder,  # type: ignore[arg-type]
        recorder.tell,
        lambda added: recorder.said.append(("measure", *added)),
        recorder if of_command else None,  # type: ignore[arg-type]
    )
    recorder.swaps = changes.swaps
    return EventPlayer(experiment, changes), recorder


DOWN = {"down": ["paris", "tokyo"]}
UP = {"up": ["paris", "tokyo"]}


@pytest.mark.pure
def test_an_event_happens_once_at_its_time_or_round(tmp_path: Path) -> None:
    played, recorder = script(tmp_path, {"at": "2s", **DOWN}, {"round": 3, **UP})
    played.play(1.9, 2)
    assert recorder.said == []
    played.play(2.0, 2)
    assert recorder.said == [("down", "paris", "tokyo"), "inform"]
    played.play(3.0, 3)
    played.play(4.0, 4)
    assert recorder.said[2:] == [("up", "paris", "tokyo"), "inform"]
    assert recorder.told == [("down", "paris-tokyo"), ("up", "paris-tokyo")]


@pytest.mark.local
def test_the_controller_of_a_command_is_told_of_the_network_among_its_workers(tmp_path: Path) -> None:
    names = {"paris-w0", "dallas-w0"}
    train = {"command": {name: ["true"] for name in names}, "backend": "wan"}
    events = {"at": "2s", **DOWN}, {"at": "3s", "swap": "other.yaml"}
    played, recorder = script(tmp_path, *events, of_command=True, train=train, sync=None)
    played.play(2.0, 0)
    played.play(3.0, 0)
    assert recorder.said[:2] == [("down", "paris", "tokyo"), "inform"]
    assert len(recorder.informed) == 2
    for _, routes in recorder.informed:
        assert {name for pair in routes for name in pair} == names
    links, _ = recorder.informed[0]
    assert "paris->tokyo" not in links and "tokyo->paris" not in links


@pytest.mark.pure
def test_events_missed_meanwhile_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    played, recorder = script(tmp_path, {"at": "3s", **UP}, {"at": "2s", **DOWN})
    played.play(10.0, 0)
    assert recorder.told == [("down", "paris-tokyo"), ("up", "paris-tokyo")]


@pytest.mark.pure
def test_events_of_rounds_that_ended_meanwhile_come_in_the_order_of_the_rounds(tmp_path: Path) -> None:
    played, recorder = script(tmp_path, {"round": 3, **UP}, {"round": 2, **DOWN})
    played.play(10.0, 3)
    assert recorder.told == [("down", "paris-tokyo"), ("up", "paris-tokyo")]


@pytest.mark.pure
def test_the_controller_is_told_what_is_there_but_not_what_only_traces_and_changes_do(tmp_path: Path) -> None:
    change = {"link": "paris->dallas", "rate": "1mbit"}
    played, recorder = script(tmp_path, {"at": "1s", "change": change}, {"at": "2s", **DOWN})
    played.play(1.0, 0)
    assert recorder.said == [("change", "paris->dallas", 1e6)]
    played.play(2.0, 0)
    links, routes = recorder.informed[0]
    assert "paris->tokyo" not in links
    assert links["paris->dallas"].rate_bps == 80e6
    assert ("paris-w0", "tokyo-w0") not in routes
    assert ("paris-w0", "dallas-w0") in routes


@pytest.mark.pure
def test_an_oracle_is_told_each_period_what_links_truly_carry(tmp_path: Path) -> None:
    played, recorder = script(tmp_path, {"at": "5s", **DOWN}, controller={"knowledge": "oracle", "period": "2s"})
    for second in range(8):
        played.play(float(second), 0)
    assert recorder.said == ["inform", "inform", ("down", "paris", "tokyo"), "inform", "inform"]  # 2, 4, 5, 6 s
    truth = [
        {name: link.rate_bps for name, link in links.items() if "-w" not in name} for links, _ in recorder.informed
    ]
    assert all(set(rates.values()) == {7e6} for rates in truth)
    assert "paris->tokyo" in truth[1]
    assert "paris->tokyo" not in truth[2]


@pytest.mark.pure
def test_an_oracle_is_told_that_a_link_which_loses_every_packet_carries_nothing(tmp_path: Path) -> None:
    played, recorder = script(tmp_path, controller={"knowledge": "oracle", "period": "2s"})
    states = recorder.states()
    recorder.states = lambda: states | {"paris->tokyo": states["paris->tokyo"].losing(1.0)}  # type: ignore[method-assign]
    played.play(2.0, 0)
    ((links, _),) = recorder.informed
    assert [name for name, link in links.items() if not link.up] == ["paris->tokyo"]


@pytest.mark.pure
def test_a_rate_to_change_to_is_scaled_as_all_rates_are(tmp_path: Path) -> None:
    change = {"link": "paris->dallas", "rate": "10mbit", "delay": "20ms"}
    played, recorder = script(tmp_path, {"at": "1s", "change": change}, scale=0.2)
    played.play(1.0, 0)
    assert recorder.said == [("change", "paris->dallas", 2e6)]


@pytest.mark.local
def test_a_swap_is_followed_by_the_clock_and_recorded(tmp_path: Path) -> None:
    played, recorder = script(tmp_path, {"round": 1, "swap": "other.yaml"})
    played.play(0.5, 1)
    assert recorder.said == [("measure", "x->y"), ("swap", "other"), ("follow", 4), "inform"]
    assert recorder.told == [("swap", "other")]
    (swap,) = recorder.swaps
    assert swap["active_s"] - swap["requested_s"] == 0.25
    assert (swap["kind"], swap["target"], swap["file"]) == ("network", "other", "other.yaml")
    assert (swap["added"], swap["removed"], swap["changed"]) == (("x->y",), ("y->z",), ())
    assert recorder.removed == ["y->z"]


@pytest.mark.local
def test_a_swap_that_the_controller_rejects_is_recorded(tmp_path: Path) -> None:
    played, recorder = script(tmp_path, {"round": 1, "swap": "other.yaml"})

    def reject(*_: object) -> None:
        raise ControllerError("the run is done")

    recorder.change_network = reject  # type: ignore[method-assign]
    with pytest.raises(RunFailed):
        played.play(0.5, 1)
    assert recorder.told == [("swap", "other")]
    assert [swap["target"] for swap in recorder.swaps] == ["other"]


@pytest.mark.local
def test_after_a_swap_that_failed_the_links_that_are_there_are_replayed_on(tmp_path: Path) -> None:
    played, recorder = script(tmp_path, {"round": 1, "swap": "other.yaml"})

    def fail(*_: object) -> NetworkSwap:
        raise ShapingError("on purpose")

    recorder.swap = fail  # type: ignore[method-assign]
    with pytest.raises(ShapingError):
        played.play(0.5, 1)
    assert recorder.said == [("follow", 4)]
    assert recorder.swaps == []


@pytest.mark.pure
def test_what_has_not_happened_is_named(tmp_path: Path) -> None:
    change = {"link": "paris->dallas", "rate": "1mbit"}
    played, _ = script(tmp_path, {"at": "9s", **DOWN}, {"round": 3, "change": change}, {"at": "1s", **UP})
    played.play(2.0, 1)
    assert played.waiting == ["down paris-tokyo at 9 s", "change of paris->dallas in round 3"]


@pytest.mark.pure
def test_an_event_that_cannot_happen_ends_the_run_in_words(tmp_path: Path) -> None:
    played, recorder = script(tmp_path, {"at": "1s", "change": {"link": "paris->dallas", "rate": "1mbit"}})

    def refuse(_: LinkChange) -> None:
        raise KeyError("no link paris->dallas is up")

    recorder.change = refuse  # type: ignore[method-assign]
    with pytest.raises(RunFailed) as caught:
        played.play(2.0, 0)
    assert caught.value.rule == "event"


@pytest.mark.pure
@pytest.mark.parametrize(
    ("error", "rejected"),
    [
        (ControllerError("the run is done"), True),
        (ControllerFailedError("timed out"), False),
        (ControllerFailedError("KeyError()"), False),
    ],
)
def test_an_event_is_rejected_only_by_a_controller_that_refuses_it(
    tmp_path: Path, error: ControllerError, rejected: bool
) -> None:
    played, recorder = script(tmp_path, {"round": 1, **DOWN})

    def fail(*_: object) -> None:
        raise error

    recorder.change_network = fail  # type: ignore[method-assign]
    with pytest.raises(RunFailed) as caught:
        played.play(0.5, 1)
    assert (caught.value.rule, caught.value.__cause__) == ("event", error)
    assert ("rejected" in str(caught.value)) is rejected


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

    def do(self, request: Request) -> None:
        self.said.append(request)

    def address(self, worker: Worker) -> str:
        return f"an address of {worker.name}"

    def tell(self, kind: str, target: str, by: str, *, changed: Any = None, removed: Sequence[str] = ()) -> None:
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
    assert capsys.readouterr().out == "  links added: x->y\n  links removed: y->z\nother in force after 0.25 s\n"
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
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ControllerError("there is no policy nets"), 422),
        (ControllerFailedError("timed out"), 500),
        (ControllerFailedError("KeyError()"), 500),
    ],
)
def test_a_request_is_not_wrong_where_the_controller_does_not_answer(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ControllerError, status: int
) -> None:
    growing = Growing(experiment.topology)

    def fail(_: Request) -> None:
        raise error

    monkeypatch.setattr(growing, "do", fail)
    run_log = cast(RunLog, SimpleNamespace(directory=SimpleNamespace(path=tmp_path)))
    controller, testbed = cast(ControllerClient, growing), cast(Testbed, growing)
    run = LiveRun(testbed, changes_of(experiment, growing), run_log, LoopExecutor(), controller)
    with pytest.raises(ApiProblem) as caught:
        run.do(ForcePolicy(policy="nets"))
    assert caught.value.status == status and growing.told == []


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


@pytest.mark.pure
def test_a_run_without_a_controller_ends_after_a_request_to_stop(experiment: Experiment) -> None:
    growing = Growing(experiment.topology)
    changes = changes_of(experiment, growing, ours=False)
    assert changes.do(Stop(reason="enough"), "hand") == {}
    assert changes.stopped and growing.told == [("stop", "enough")]


TREE = Tree("paris-w0", {"paris-w1": "paris-w0"}, {"paris-w1": "paris-w0"})
PLAN = Plan(0, ("paris-w0", "paris-w1"), (TREE,))
GROUPED = replace(PLAN, groups=(PLAN.whole,), period=2)
THROUGH_CODEC = replace(PLAN, link_codecs={"paris-w1->paris-w0": "int8"})


def given(plan: Plan) -> ForcePolicy:
    return ForcePolicy(policy="given", options={"document": plan.to_json()})


@pytest.mark.pure
@pytest.mark.parametrize(
    ("strategy", "refused", "taken"),
    [
        ("gradients", ForcePolicy(policy="cpn"), ForcePolicy(policy="star")),
        ("gradients", ForcePolicy(policy="hips", options={"period": 4}), ForcePolicy(policy="hips")),
        ("gradients", ForcePlan(plan=GROUPED.to_json()), ForcePlan(plan=THROUGH_CODEC.to_json())),
        ("gradients", given(GROUPED), given(PLAN)),
        ("sparta", given(THROUGH_CODEC), given(GROUPED)),
        ("sparta", ForcePlan(plan=THROUGH_CODEC.to_json()), ForcePlan(plan=GROUPED.to_json())),
        ("local_sgd", ForcePolicy(policy="cpn", options={"temporal": True}), ForcePolicy(policy="cpn")),
    ],
)
def test_plans_by_which_the_scheme_can_t_train_are_refused(
    tmp_path: Path, strategy: str, refused: Request, taken: Request
) -> None:
    experiment = Experiment.load(write(tmp_path, experiment={**EXPERIMENT, "sync": {"strategy": strategy}}))
    growing = Growing(experiment.topology)
    changes = changes_of(experiment, growing)
    with pytest.raises(ApiProblem) as caught:
        changes.do(refused, "hand")
    assert caught.value.status == WRONG and growing.told == growing.said == []
    assert changes.do(taken, "hand") == {}
    assert growing.said == [taken]
