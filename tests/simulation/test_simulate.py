"""Whole simulations leave a run's records, and refuse experiments that cannot be simulated."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import yaml
from rich.console import Console

from testbed.emulation.containers import documentation
from testbed.emulation.errors import EmulationError
from testbed.emulation.interrupt import Interrupted
from testbed.emulation.network.routing import Routes
from testbed.report.figures.rounds import draw_rounds
from testbed.report.page import write_report
from testbed.report.record import RunRecord
from testbed.run.directory import RunDirectory
from testbed.run.errors import CannotRun, RunFailed
from testbed.run.jobs import Jobs
from testbed.run.terminal.display import Display, OutputClosedError, ProgressConsole
from testbed.schemes import SCHEMES
from testbed.simulation.simulate import simulate, train
from testbed.spec.errors import SpecError
from tests.simulation.experiments import LINKS, load, simulated, write

pytestmark = pytest.mark.local

EVENTS = [
    {"at": "2s", "change": {"link": "a->b", "rate": "1.5mbit"}},
    {"round": 12, "down": ["b", "c"]},
]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the runs of each test below its own folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """Simulate a link that falls to an eighth, so that the plan leaves it, and then a pair that goes down."""
    folder = tmp_path_factory.mktemp("followed")
    train = {"model": "synthetic", "parameters": 150_000, "rounds": 24}
    file = write(
        folder, train=train, controller={"period": "1s"}, events=EVENTS, sync={"policy": "mst", "congestion": "reno"}
    )
    with pytest.MonkeyPatch.context() as here:
        here.chdir(folder)
        return simulated(file)


def test_it_says_that_it_is_simulated(followed: RunRecord) -> None:
    assert followed.finished and followed.gaps == ()
    assert followed.summary["verdict"] == "simulated"
    assert followed.manifest["simulated"] == {"model": "chunks", "congestion": "reno", "gradients": False}
    assert followed.summary["training"]["identical_parameters"] is None


def test_a_plan_follows_the_network_two_rounds_after_and_no_round_is_lost(followed: RunRecord) -> None:
    assert [one.number for one in followed.rounds] == list(range(1, 25))
    swaps = [swap for swap in followed.summary["swaps"] if swap["kind"] == "plan"]
    assert swaps
    for swap in swaps:
        on = sum(followed.since(one.finished_s) <= swap["requested_s"] + 1e-3 for one in followed.rounds) + 1
        assert swap["active_round"] - on in (1, 2)
        assert swap["lost_updates"] == swap["duplicated_updates"] == 0
    assert {report.round for report in followed.reports if report.epoch == 0} == set(range(1, swaps[0]["active_round"]))


@pytest.mark.parametrize("strategy", ["gradients", "dpsgd"])
def test_a_training_that_is_cut_off_has_nothing_later(strategy: str, tmp_path: Path) -> None:
    sync = {"strategy": strategy, **({"policy": "ring"} if strategy == "gradients" else {})}
    experiment = load(tmp_path, train={"model": "synthetic", "parameters": 150_000, "rounds": 10_000}, sync=sync)
    with closing(RunDirectory("cut-off")) as directory:
        train(experiment, directory, Display(Console(quiet=True)), gradients=False, until_s=2.5)
    record = RunRecord.read(directory.path)
    assert record.reports and max(record.since(report.finished_s) for report in record.reports) <= 2.5
    assert record.end_s == 2.5
    assert not (directory.path / "final.json").exists(), "members have not said goodbye"


@pytest.mark.parametrize("strategy", ["gradients", "dpsgd"])
def test_a_training_that_ends_before_it_would_be_cut_off_has_no_samples_after_its_end(
    strategy: str, tmp_path: Path
) -> None:
    experiment = load(tmp_path, sync={"strategy": strategy, **({"policy": "ring"} if strategy == "gradients" else {})})
    with closing(RunDirectory("ended")) as directory:
        train(experiment, directory, Display(Console(quiet=True)), gradients=False, until_s=500.0)
    record = RunRecord.read(directory.path)
    assert record.end_s < 100
    assert record.samples[-1].at_s <= record.end_s + 1


def test_a_plan_takes_force_between_rounds_among_all(tmp_path: Path) -> None:
    sync = {"strategy": "hierarchical", "every": 1, "period": 8, "policy": "mst"}
    train = {"model": "synthetic", "parameters": 150_000, "rounds": 16}
    events = [{"round": 9, "down": ["a", "b"]}]
    record = simulated(write(tmp_path, train=train, controller={"period": "1s"}, events=events, sync=sync))
    (swap,) = [swap for swap in record.summary["swaps"] if swap["kind"] == "plan"]
    assert 9 < swap["active_round"] < 16
    assert {report.round for report in record.reports if report.epoch == 0} == set(range(1, swap["active_round"]))


def test_events_stand_with_their_times_and_links_as_they_were(followed: RunRecord) -> None:
    told = [(event["kind"], event["target"]) for event in followed.summary["events"]]
    assert told == [("change", "a->b"), ("down", "b-c")]
    assert [(round(one.at_s, 3), one.rate_bps) for one in followed.states["a->b"]] == [(0.0, 12e6), (2.0, 1.5e6)]
    twelfth = followed.since(followed.rounds[11].finished_s)
    assert twelfth < followed.states["b->c"][-1].at_s < twelfth + 0.5 and not followed.states["b->c"][-1].up


def test_a_change_that_a_swap_of_the_same_moment_takes_back_is_recorded(tmp_path: Path) -> None:
    less = yaml.safe_load(write(tmp_path).with_name("net.yaml").read_text())
    (tmp_path / "less.yaml").write_text(yaml.safe_dump({**less, "name": "less", "links": less["links"][1:]}))
    change = {"change": {"link": "a->b", "rate": "3mbit"}}
    events = [{"at": "0.5s", **change}, {"at": "0.5s", "swap": "less.yaml"}]
    record = simulated(write(tmp_path, events=events))
    told = [(event["kind"], event["target"], event.get("changed", {}).get("rate_bps")) for event in record.events]
    assert told == [("change", "a->b", 3e6), ("swap", "less", None)]


def test_links_carry_what_members_send(followed: RunRecord) -> None:
    sent = sum(report.sent_bytes for report in followed.reports)
    carried = sum(followed.samples[-1].bytes.values())
    assert carried >= sent * 1514 / 1448 * 0.99  # more where a route has two links
    assert followed.summary["sync"]["wan_bytes"] == carried, "the first second counts too"


@pytest.mark.parametrize(
    ("sync", "measured"),
    [
        ({"strategy": "gradients"}, False),
        ({"strategy": "gradients", "powersgd_rank": 2}, True),
        ({"strategy": "des_loc"}, True),
        ({"strategy": "diloco", "every": 8, "fragments": 2}, True),
    ],
)
def test_rounds_that_differ_in_size_are_planned_by_what_they_send(
    sync: dict[str, Any], measured: bool, tmp_path: Path
) -> None:
    experiment = load(tmp_path, sync={**sync, "policy": "mst"})
    planning = Jobs(experiment).controller_spec(Routes.over(experiment.topology), 0.0).planning
    assert planning is not None and planning.measured_bytes == measured


@pytest.mark.parametrize(
    ("sync", "covered"),
    [
        ({"strategy": "gradients"}, 0.0),
        ({"strategy": "loscar"}, 1.0),
        ({"strategy": "hybrid", "overlap": True}, 1.0),
        ({"strategy": "diloco", "every": 8, "delay": 2}, 0.25),
        ({"strategy": "diloco", "every": 8, "fragments": 2, "delay": 2}, 0.5),
        ({"strategy": "diloco", "every": 8, "fragments": 4, "delay": 7}, 1.0),
    ],
)
def test_plans_are_told_which_part_of_the_steps_members_take_beside_rounds(
    sync: dict[str, Any], covered: float, tmp_path: Path
) -> None:
    experiment = load(tmp_path, sync={**sync, "policy": "mst"})
    planning = Jobs(experiment).controller_spec(Routes.over(experiment.topology), 0.0).planning
    assert planning is not None and planning.covered == covered


@pytest.mark.parametrize(("delay", "swaps"), [(0, True), (3, False)])
def test_a_link_that_falls_where_steps_cover_the_round_is_left_alone(delay: int, swaps: bool, tmp_path: Path) -> None:
    train = {"model": "synthetic", "parameters": 30_000, "rounds": 60}
    sync = {"policy": "mst", "congestion": "reno", "strategy": "diloco", "every": 4, "delay": delay}
    change = {"at": "10s", "change": {"link": "a->b", "rate": "1.5mbit"}}
    more = {"controller": {"period": "1s"}, "compute": {"step_time": "250ms"}, "events": [change]}
    record = simulated(write(tmp_path, train=train, sync=sync, **more))
    assert (len(record.plans) > 1) == swaps


def test_rounds_of_two_sizes_lead_to_another_plan_where_a_link_falls(tmp_path: Path) -> None:
    train = {"model": "synthetic", "parameters": 150_000, "rounds": 40}
    sync = {"strategy": "des_loc", "every": 2, "policy": "mst", "congestion": "reno"}
    change = {"at": "6s", "change": {"link": "a->b", "rate": "1.5mbit"}}
    record = simulated(write(tmp_path, train=train, controller={"period": "1s"}, events=[change], sync=sync))
    last = record.plans[max(record.plans)]
    assert last.epoch > 0 and ("a-w0", "b-w0") not in {edge[:2] for edge in last.edges()}


def test_the_same_seed_has_the_same_rounds(tmp_path: Path) -> None:
    compute = {"step_time": "100ms", "slowdown": {"factor": 4, "probability": 0.3}}
    file = write(tmp_path, compute=compute, controller={"period": "1s"})
    first, again, other = simulated(file), simulated(file), simulated(file, seed="2")

    def rounds(record: RunRecord) -> list[tuple[float, float]]:
        return [(record.since(one.entered_s), record.since(one.finished_s)) for one in record.rounds]

    assert rounds(first) == rounds(again) != rounds(other)


#: Schemes that reduce in rounds, each with enough of them in so few steps.
IN_ROUNDS: dict[str, dict[str, object]] = {
    "gradients": {"codec": "int8"},
    "local_sgd": {"every": 3},
    "post_local_sgd": {"start": 4, "every": 3},
    "des_loc": {"every": 2},
    "diloco": {"every": 4, "fragments": 2, "delay": 1},
    "hierarchical": {"every": 2, "period": 2},
    "hybrid": {"every": 3, "period": 2, "overlap": True},
    "sparta": {"share": 0.2, "every": 4},
    "loscar": {"share": 0.2, "delay": 2},
    "sparseloco": {"every": 3},
    "muloco": {"every": 3},
}


def inner_of(strategy: str) -> str:
    """Return the name of an optimizer that the scheme takes."""
    inner = SCHEMES[strategy].inner or "sgd"
    return inner if isinstance(inner, str) else inner[0]


@pytest.mark.parametrize("strategy", IN_ROUNDS)
def test_members_learn_for_real_and_agree(strategy: str, tmp_path: Path) -> None:
    train = {"model": "svm", "rounds": 10, "evaluate_every": 5, "optimizer": {"name": inner_of(strategy)}}
    file = write(tmp_path, train=train, sync={"policy": "ring", "strategy": strategy, **IN_ROUNDS[strategy]})
    record = simulated(file, gradients=True)
    assert record.summary["training"]["identical_parameters"] is True
    _, losses = record.metric("loss")
    assert min(losses[1:]) < losses[0]
    assert record.metric("accuracy")[0]
    assert len(record.rounds) >= 10


@pytest.mark.parametrize("strategy", IN_ROUNDS)
def test_placeholder_members_request_the_rounds_that_real_members_request(strategy: str, tmp_path: Path) -> None:
    """Rounds end at the same moments, except for bytes that depend on values (codecs) or tensors (fragments)."""
    train = {"model": "svm", "rounds": 6, "optimizer": {"name": inner_of(strategy)}}
    file = write(tmp_path, train=train, sync={"policy": "ring", "strategy": strategy, **IN_ROUNDS[strategy]})
    check_rounds_end_alike(simulated(file, gradients=True), simulated(file))


def test_placeholder_members_take_the_steps_that_the_plan_gives_each(tmp_path: Path) -> None:
    (tmp_path / "slow.csv").write_text("time_s,speed\n0,0.25\n10,0.25\n")
    file = write(
        tmp_path,
        train={"model": "svm", "rounds": 8},
        compute={"step_time": "100ms", "speeds": {"c-w0": "slow.csv"}},
        sync={"policy": "cpn", "strategy": "hybrid", "every": 8},
        controller={"period": "1s", "hold": False},
    )
    learning, placeholders = simulated(file, gradients=True), simulated(file)
    assert {tuple(plan.steps.values()) for plan in learning.plans.values()} == {(8, 8, 8), (8, 8, 2)}
    check_rounds_end_alike(learning, placeholders)


def check_rounds_end_alike(one: RunRecord, other: RunRecord) -> None:
    """Check that two runs have as many rounds, which end at the same moments."""
    ends = [[record.since(its.finished_s) for its in record.rounds] for record in (one, other)]
    assert ends[0] == pytest.approx(ends[1], rel=0.01)


def test_a_round_that_goes_on_beside_steps_costs_what_they_do_not_cover(tmp_path: Path) -> None:
    def took_s(delay: int) -> float:
        sync = {"policy": "ring", "strategy": "diloco", "every": 4, "delay": delay}
        record = simulated(write(tmp_path, sync=sync, compute={"step_time": "300ms"}))
        return record.since(record.rounds[-1].finished_s)

    waited, hidden = took_s(0), took_s(3)
    rounds_s = waited - 8 * 4 * 0.3
    assert rounds_s / 8 < 3 * 0.3  # three steps cover a round
    assert hidden == pytest.approx(waited - 7 * rounds_s / 8, rel=0.02)


#: Schemes whose members gossip, as they are on three sites.
GOSSIP: dict[str, dict[str, object]] = {
    "hop": {},
    "dpsgd": {},
    "sgp": {},
    "prague": {},
    "netmax": {},
    "noloco": {"every": 2},
    "fedasync": {},
    "staggered": {"policy": "cpn", "every": 2},
    "decoupled_diloco": {"every": 4, "fragments": 2},
    "halos": {},
}


@pytest.mark.parametrize("strategy", GOSSIP)
def test_members_gossip_and_learn_for_real(strategy: str, tmp_path: Path) -> None:
    """Iterations are the same each time, and take as long as without learning."""
    train = {"model": "svm", "rounds": 10, "evaluate_every": 5, "optimizer": {"name": "adam", "learning_rate": 0.01}}
    file = write(tmp_path, train=train, sync={"strategy": strategy, **GOSSIP[strategy]})
    record, again, placeholders = simulated(file, gradients=True), simulated(file, gradients=True), simulated(file)
    assert record.finished and record.summary["verdict"] == "simulated"
    assert record.manifest["simulated"]["model"] == "messages"
    assert record.summary["training"]["rounds"] == 10
    assert record.summary["training"]["final_accuracy"] > 0.3  # a tenth is chance
    entered = [
        [(its.member, its.round, its.metrics.get("loss"), one.since(its.finished_s)) for its in one.reports]
        for one in (record, again)
    ]
    assert entered[0] == entered[1]
    ends = [max(one.since(its.finished_s) for its in one.reports) for one in (record, placeholders)]
    assert ends[0] == pytest.approx(ends[1], rel=0.02)


def test_members_that_gossip_slow_down_where_a_link_does(tmp_path: Path) -> None:
    def took_s(events: list[dict[str, object]]) -> float:
        record = simulated(write(tmp_path, sync={"strategy": "hop"}, events=events))
        return max(record.since(its.finished_s) for its in record.reports)

    falls = [{"round": 3, "change": {"link": "a->b", "rate": "2mbit"}}]
    assert took_s(falls) > 2 * took_s([])


#: A slow member loses its links in the middle of a step, and its neighbours wait for it.
CUT_OFF: dict[str, Any] = {
    "train": {"model": "synthetic", "parameters": 1_500, "rounds": 4},
    "compute": {"step_time": "100ms", "stragglers": {"a-w0": 50}},
    "sync": {"strategy": "dpsgd", "round_timeout": "30s"},
    "events": [{"round": 3, "down": pair} for pair in (["a", "b"], ["c", "a"])],
}


def test_members_that_wait_for_the_end_of_one_that_is_cut_off_fail(tmp_path: Path) -> None:
    """The slow member has the models of its last step, and cannot say that the step is over."""
    experiment = load(tmp_path, **CUT_OFF)
    with closing(RunDirectory("cut-off")) as directory, pytest.raises(RunFailed, match=r"80 s.*: b-w0, c-w0$"):
        train(experiment, directory, Display(Console(quiet=True)), gradients=False, until_s=500.0)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"sync": {"strategy": "hop"}, "events": [{"round": 2, "graph": "ring"}]}, "events.0.graph"),
        ({"sync": {"powersgd_rank": 2}}, "sync.powersgd_rank"),
        ({"elastic": {"quorum": 2}}, "elastic"),
        ({"compute": {}}, "compute.step_time"),
    ],
)
def test_what_is_not_simulated_is_refused_by_its_name(values: dict[str, Any], field: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        simulated(write(tmp_path, **values))
    assert caught.value.fields == (field,)
    assert not (tmp_path / "runs").exists()


def test_documentation_that_was_learned_from_is_named_and_what_is_missing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documentation, "DOCUMENTATION", tmp_path / "documentation")
    train = {"model": "gpt-small", "dataset": "documentation", "rank": 2, "rounds": 1, "batch": 1}
    file = write(tmp_path, train=train)
    with pytest.raises(CannotRun, match="`make documentation`"):
        simulated(file, gradients=True)
    text = bytes(range(32, 127)) * 300
    said = {"sha256": hashlib.sha256(text).hexdigest(), "packages": {"a-doc": {"version": "1", "licence": "Expat"}}}
    (tmp_path / "documentation").mkdir()
    (tmp_path / "documentation" / "text.txt").write_bytes(text)
    (tmp_path / "documentation" / "documentation.json").write_text(json.dumps(said))
    record = simulated(file, gradients=True)
    assert record.finished and record.manifest["data"] == said
    (tmp_path / "documentation" / "text.txt").write_bytes(text[1:])
    with pytest.raises(CannotRun, match="`make documentation`"):
        simulated(file, gradients=True)


def test_models_that_learn_from_no_digits_need_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without scikit-learn, of which the digits are made."""
    monkeypatch.setattr(
        "testbed.simulation.member_training.digits_folder", Mock(side_effect=EmulationError("no digits"))
    )
    text = {"model": "gpt-small", "rank": 2, "rounds": 1, "batch": 1}
    assert simulated(write(tmp_path, train=text), gradients=True).finished
    with pytest.raises(CannotRun):
        simulated(write(tmp_path, train={"model": "svm", "rounds": 1}), gradients=True)


def test_a_gpu_that_is_missing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    file = write(tmp_path, train={"model": "svm", "rounds": 1, "device": "cuda"})
    assert simulated(file).finished, "members that do not learn need none"
    with pytest.raises(CannotRun, match="`device: cuda`"):
        simulated(file, gradients=True)


def test_a_simulation_whose_output_nobody_reads_any_longer_says_so(tmp_path: Path) -> None:
    """As of `testbed simulate … | head`."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output, pytest.raises(OutputClosedError) as raised:
        simulate(write(tmp_path), {}, False, lambda run: run, Display(ProgressConsole(file=output)))
    assert json.loads(Path("runs/latest/summary.json").read_text())["reasons"] == [str(raised.value)]


def test_a_simulation_that_fails_has_its_report(tmp_path: Path) -> None:
    """The neighbours of a member without links wait for it until the timeout."""
    file = write(tmp_path, **CUT_OFF)
    done = simulate(file, {}, False, write_report, Display(Console(file=io.StringIO())))
    assert (done.finished, done.page) == (False, done.directory / "report.html")
    assert (done.directory / "report.html").exists()


def test_an_interrupted_simulation_has_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.simulation.simulate.train", Mock(side_effect=Interrupted("SIGINT")))
    with pytest.raises(Interrupted) as caught:
        simulate(write(tmp_path), {}, False, lambda run: run / "report.html", Display(Console(file=io.StringIO())))
    assert caught.value.records is not None
    assert caught.value.page == caught.value.records / "report.html"


def test_a_simulation_whose_report_cannot_be_made_keeps_its_summary(tmp_path: Path) -> None:
    done = simulate(
        write(tmp_path), {}, False, Mock(side_effect=OSError("no page today")), Display(Console(file=io.StringIO()))
    )
    assert (done.finished, done.page) == (True, None)
    assert json.loads((done.directory / "summary.json").read_text())["verdict"] == "simulated"


@pytest.mark.parametrize(
    ("error", "reason"), [(KeyboardInterrupt(), "interrupted"), (AssertionError(), "AssertionError")]
)
def test_an_error_without_a_text_leaves_a_reason(
    error: BaseException, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-C in a notebook, where no command turns it into an Interrupted."""
    monkeypatch.setattr("testbed.simulation.simulate.train", Mock(side_effect=error))
    with pytest.raises(type(error)):
        simulated(write(tmp_path))
    (told,) = json.loads(Path("runs/latest/summary.json").read_text())["reasons"]
    assert reason in told


@pytest.mark.parametrize("what", [{"down": ["c", "a"]}, {"change": {"link": "c->a", "rate": "1mbit"}}])
def test_an_event_of_a_link_that_is_not_there_yet_fails_as_in_a_run(what: dict[str, Any], tmp_path: Path) -> None:
    whole = yaml.safe_load(write(tmp_path).with_name("net.yaml").read_text())
    (tmp_path / "more.yaml").write_text(yaml.safe_dump({**whole, "name": "more"}))
    events = [{"at": "0.1s", **what}, {"round": 4, "swap": "more.yaml"}]
    record = simulated(write(tmp_path, LINKS[:2], events=events))
    assert not record.finished and "can't happen" in record.summary["reasons"][0]


def test_rounds_that_take_no_time_stand_in_the_figure(tmp_path: Path) -> None:
    """Each site has one worker, which synchronizes alone in seven of eight rounds."""
    sync = {"strategy": "hierarchical", "every": 1, "period": 8, "policy": "mst"}
    training = {"model": "synthetic", "parameters": 150_000, "rounds": 16}
    record = simulated(write(tmp_path, train=training, sync=sync))
    assert min(one.seconds for one in record.rounds) == 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawing = draw_rounds(record)
    assert drawing and drawing.figure.axes[0].get_yscale() == "linear"


def test_a_simulation_whose_directory_is_removed_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(_: object, directory: RunDirectory, *more: object) -> None:
        shutil.rmtree(directory.path)
        directory.append("events.jsonl", {})

    monkeypatch.setattr("testbed.simulation.simulate.train", lose)
    with pytest.raises(RunFailed, match="gone"):
        simulate(write(tmp_path), {}, False, write_report, Display(Console(file=io.StringIO())))
