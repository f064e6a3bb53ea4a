"""The lower bound in a run's summary, and the segments over which it is computed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.link import LinkState
from testbed.plan import Group, Plan, Tree
from testbed.planning import make_policy
from testbed.planning.bound import least_period
from testbed.run.conclusion.bounds import Segment, has_one_bound, lower_bound, mean_states, provable, segments_of
from testbed.run.conclusion.summary import rounds_of
from testbed.run.directory import RunDirectory
from testbed.run.view import declared_view
from testbed.spec.experiment import Experiment
from tests.run.conclusion.test_summary import report
from tests.run.running import REPOSITORY

SMOKE = REPOSITORY / "experiments" / "smoke.yaml"


def experiment(**sync: str) -> Experiment:
    return Experiment.load(SMOKE, {f"sync.{name}": value for name, value in sync.items()})


def recorded(run: Experiment, change: dict[str, object], folder: Path) -> RunDirectory:
    """Return the directory of a run with a plan with the run's codec, and that plan with a `change`."""
    plan = replace(make_policy("mst").plan(declared_view(run.topology, 1000)), codec=run.spec.sync.codec)
    if "groups" in change:
        alone = tuple(Group((name,), (Tree(name, {}, {}),)) for name in plan.members)
        change = {**change, "groups": alone}
    directory = RunDirectory("smoke", folder)
    (directory.path / "plans").mkdir()
    for epoch, made in enumerate((plan, replace(plan, **change))):  # type: ignore[arg-type]
        (directory.path / f"plans/{epoch:04d}.json").write_text(json.dumps(Plan.to_json(made.with_epoch(epoch))))
    return directory


@pytest.mark.local
@pytest.mark.parametrize(
    ("sync", "change", "stands"),
    [
        ({}, {}, True),
        ({"strategy": "local_sgd"}, {}, False),
        ({"strategy": "diloco"}, {}, False),
        ({"powersgd_rank": "2"}, {}, False),
        ({}, {"codec": "int8"}, False),
        ({}, {"link_codecs": {"london-w0->paris-w0": "bf16"}}, False),
        ({}, {"groups": ..., "period": 4}, False),
    ],
)
def test_it_stands_where_it_is_proven(
    sync: dict[str, str], change: dict[str, object], stands: bool, tmp_path: Path
) -> None:
    run = experiment(**sync)
    assert provable(run, recorded(run, change, tmp_path)) is stands


@pytest.mark.local
@pytest.mark.parametrize(
    ("sync", "change", "stands"),
    [
        ({"strategy": "diloco"}, {}, True),
        ({"codec": "int8"}, {}, True),
        ({"strategy": "sparseloco", "clip": "false"}, {}, True),
        ({"strategy": "sparseloco"}, {}, False),
        ({"powersgd_rank": "2"}, {}, False),
        ({"strategy": "sparta"}, {}, True),
        ({"strategy": "sparta", "every": "4"}, {}, False),
        ({"strategy": "des_loc"}, {}, False),
        ({}, {"codec": "int8"}, False),
        ({}, {"link_codecs": {"london-w0->paris-w0": "bf16"}}, False),
        ({"strategy": "hierarchical"}, {"groups": ..., "period": 4}, False),
    ],
)
def test_one_bound_holds_for_rounds_of_one_size(
    sync: dict[str, str], change: dict[str, object], stands: bool, tmp_path: Path
) -> None:
    run = experiment(**sync)
    assert has_one_bound(run, recorded(run, change, tmp_path)) is stands


@pytest.mark.local
def test_it_is_a_mean_over_rounds_of_the_network_as_it_was() -> None:
    run = experiment()
    view = declared_view(run.topology, run.spec.round_bytes)
    slow, fast = (dict.fromkeys(view.names, seconds) for seconds in (9.0, 0.0))
    least = [least_period(view, slow), least_period(view, fast)]
    found = (Segment(10, 0.0, 100.0, slow), Segment(30, 100.0, 300.0, fast))
    told = lower_bound(run, [], [], found)
    mean = (10 * least[0] + 30 * least[1]) / 40
    assert told["lower_bound_seconds"] == pytest.approx(mean)
    assert told["ratio_to_lower_bound"] == pytest.approx(300 / 40 / mean)
    swap = {"active_s": 150.0, "file": next(iter(run.networks))}
    assert lower_bound(run, [], [swap], found)["lower_bound_seconds"] == pytest.approx(least[0])
    removed = {"at_s": -1.0, "link": next(iter(run.topology.links)), "removed": True}  # by a clock that was set back
    assert lower_bound(run, [removed], [], found) == told
    down = {"at_s": 190.0, "link": removed["link"], "rate_bps": 1e6, "delay_s": 0.01, "loss": 0.0, "up": False}
    assert lower_bound(run, [down], [], found)["lower_bound_seconds"] == pytest.approx(least[0]), "routes changed then"


@pytest.mark.local
def test_nothing_is_told_of_no_rounds() -> None:
    assert lower_bound(experiment(), [], [], ()) == dict.fromkeys(("lower_bound_seconds", "ratio_to_lower_bound"))


def rounds(count: int) -> list[dict[str, object]]:
    """A second each, up to when b has the mean; a has it 0.1 s before, and computes for 0.7 s, in even rounds 0.5."""
    found = []
    for number in range(1, count + 1):
        found.append(report(number, "a", number - (0.4 if number % 2 else 0.6), number - 0.1))
        found.append(report(number, "b", number - 0.8, float(number)))
    return found


@pytest.mark.pure
def test_a_stretch_runs_from_end_to_end_and_tells_what_members_took_between_rounds() -> None:
    reports = rounds(33)
    first, *_, last = found = segments_of(rounds_of(reports, 2), reports)
    assert [each.rounds for each in found] == [8, 8, 8, 8]
    assert (first.began_s, first.ended_s, last.ended_s) == (1.0, 9.0, 33.0)
    assert first.compute_s == {"a": pytest.approx(0.6), "b": pytest.approx(0.2)}


@pytest.mark.pure
def test_a_run_of_one_round_has_no_stretch() -> None:
    for count in (0, 1):
        assert segments_of(rounds_of(rounds(count), 2), rounds(count)) == []
    assert [each.rounds for each in segments_of(rounds_of(rounds(2), 2), rounds(2))] == [1]


@pytest.mark.pure
def test_links_count_with_what_they_passed_on_average() -> None:
    def record(
        at_s: float, rate_bps: float, up: bool = True, link: str = "a->b", loss: float = 0.0
    ) -> dict[str, object]:
        return {"at_s": at_s, "link": link, "rate_bps": rate_bps, "delay_s": 0.02, "loss": loss, "up": up}

    before = {"a->b": LinkState(8e6, 0.03), "b->a": LinkState(4e6, 0.01), "a->c": LinkState(5e6, 0.01, up=False)}
    records = [
        record(0.5, 1e6),
        record(2.0, 2e6),
        record(6.0, 2e6, up=False),
        record(8.0, 2e6, loss=1.0),
        record(12.0, 9e6),
        record(3.0, 1, link="x"),
        {"at_s": 4.0, "link": "b->a", "removed": True},
    ]
    states = mean_states(Segment(8, 1.0, 11.0, {}), before, records)
    assert states["a->b"] == LinkState((1 * 8e6 + 4 * 2e6) / 10, 0.02)
    assert states["b->a"] == before["b->a"]
    assert not states["a->c"].up
