"""The score of a made-up run of three sites, in which the rate of a->b falls to a third."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from testbed.plan import Plan, Tree
from testbed.planning import Member, PhysicalLink, View
from testbed.protocol import Report, Train
from testbed.report.record import RunRecord
from testbed.report.replanning import score
from testbed.report.run_files import LinkRecord
from testbed.report.score import Score, TrialScore

pytestmark = pytest.mark.pure

NAMES = ("a-w0", "b-w0", "c-w0")
#: a and c exchange through b, or directly.
OVER_B = Plan(0, NAMES, (Tree("b-w0", {"a-w0": "b-w0", "c-w0": "b-w0"}, {"a-w0": "b-w0", "c-w0": "b-w0"}),))
DIRECT = Plan(1, NAMES, (Tree("c-w0", {"a-w0": "c-w0", "b-w0": "c-w0"}, {"a-w0": "c-w0", "b-w0": "c-w0"}),))
FALLS_S, BEFORE_BPS, AFTER_BPS = 10.0, 30e6, 10e6


def view() -> View:
    sites = "abc"
    members = [Member(f"{s}-w0", s, 1.0, f"{s}-w0->{s}", f"{s}->{s}-w0") for s in sites]
    links = {f"{s}->{t}": PhysicalLink(30e6, 0.01) for s in sites for t in sites if s != t}
    links |= {name: PhysicalLink(1e9, 0.0) for one in members for name in (one.uplink, one.downlink)}
    routes = {
        (f"{s}-w0", f"{t}-w0"): (f"{s}-w0->{s}", f"{s}->{t}", f"{t}->{t}-w0") for s in sites for t in sites if s != t
    }
    return View.of_network(members, links, routes, 1_000_000)


def report(number: int, epoch: int, ended_s: float) -> Report:
    return Report("a-w0", number, epoch, ended_s - 0.4, ended_s, 0.1, 0.0, 0, 0, 0, 0)


def record(
    ends: list[tuple[int, float]],
    decisions: list[Mapping[str, Any]],
    estimates: list[Mapping[str, Any]],
    **others: Any,
) -> RunRecord:
    """Return a run with rounds of these (epoch, end); the rate of a->b falls at FALLS_S. `others` replaces fields."""
    states = {name: (LinkRecord(0.0, BEFORE_BPS, 0.01),) for name in view().links if "w0" not in name}
    states["a->b"] = (LinkRecord(0.0, BEFORE_BPS, 0.01), LinkRecord(FALLS_S, AFTER_BPS, 0.01))
    found = RunRecord(
        path=Path("nowhere"),
        manifest={"ended_s": 40.0},
        summary={},
        states=states,
        samples=(),
        events=(),
        reports=tuple(report(number, epoch, ended_s) for number, (epoch, ended_s) in enumerate(ends, 1)),
        decisions=tuple({"view": "views/0000.json", **decision} for decision in decisions),
        estimates=tuple(estimates),
        plans={0: OVER_B, 1: DIRECT, 2: OVER_B.with_epoch(2)},
        zero_s=0.0,
        gaps=(),
    )
    found = replace(found, **others)
    found.__dict__["members"] = ("a-w0",)  # one member reports for all
    found.__dict__["_views"] = {"views/0000.json": view()}
    return found


def arrived(folder: Path, *trains: Train) -> Path:
    """Return a run's directory with these trains from a-w0 to b-w0, the last one in a message of its own."""
    for name, train in zip(("rounds.jsonl", "arrivals.jsonl"), (trains[:-1], trains[-1:]), strict=True):
        line = {"member": "b-w0", "arrivals": {"a-w0": train}}
        (folder / name).write_bytes(msgspec.json.encode(line) + b"\n")
    return folder


def look(at_s: float, **links: Mapping[str, float]) -> Mapping[str, Any]:
    return {"at_s": at_s, "links": {name.replace("_", "->"): value for name, value in links.items()}}


SECONDLY = [(0, float(second)) for second in range(1, 31)]
FIRST = {"at_s": 0.0, "last": None}


def test_an_estimate_is_held_against_the_mean_rate_of_its_samples_time() -> None:
    halfway = {"rate_bps": 20e6, "age_s": 1.0, "over_s": 2.0, "low_bps": 19e6, "high_bps": 22e6}
    far_above = {"rate_bps": 30e6, "age_s": 0.0, "over_s": 1.0, "low_bps": 29e6, "high_bps": 31e6}
    old = {"rate_bps": 1e6, "age_s": 11.0}
    found = score(record(SECONDLY, [FIRST], [look(12.0, a_b=halfway), look(20.0, a_b=far_above, b_a=old)]))
    assert found.errors == pytest.approx((0.0, 2.0))
    assert found.held == (True, False)
    assert found.known_cells()["above 1.5 × the true rate"] == "50 %"


def test_what_is_known_counts_for_the_links_that_the_plan_in_force_uses() -> None:
    young, old = {"rate_bps": 30e6, "age_s": 3.0}, {"rate_bps": 30e6, "age_s": 30.0}
    found = score(record(SECONDLY, [FIRST], [look(5.0, a_b=young, b_a=young, b_c=old, a_c=young)]))
    assert sorted(found.known) == [False, False, True, True], "c->b was never measured, a->c is not used"


@pytest.mark.parametrize(
    ("at_s", "said_bps", "seconds", "in_time", "soon"),
    [(12.0, 12e6, 2.0, True, True), (12.5, 12e6, 2.5, True, False), (15.0, 9e6, 5.0, False, False)],
)
def test_a_step_is_noticed_when_the_estimate_is_nearer_to_the_new_rate(
    at_s: float, said_bps: float, seconds: float, in_time: bool, soon: bool
) -> None:
    looks = [look(11.0, a_b={"rate_bps": 25e6, "age_s": 0.1}), look(at_s, a_b={"rate_bps": said_bps, "age_s": 0.1})]
    found = score(record(SECONDLY, [FIRST], looks))
    assert found.noticed_s == (seconds,)
    assert found.in_time == (in_time,)
    assert found.soon == (soon,)


def test_a_step_of_a_long_link_is_noticed_soon_within_its_round_trip() -> None:
    looks = [look(12.5, a_b={"rate_bps": 10e6, "age_s": 0.1})]
    states = record(SECONDLY, [FIRST], looks).states
    long = {**states, "b->a": (LinkRecord(0.0, BEFORE_BPS, 2.6),)}
    assert score(record(SECONDLY, [FIRST], looks)).soon == (False,)
    assert score(record(SECONDLY, [FIRST], looks, states=long)).soon == (True,)


@pytest.mark.parametrize(("noticed_s", "counts"), [(11.0, True), (13.0, False)])
def test_a_step_counts_where_the_plan_leaves_the_link_once_it_was_noticed(noticed_s: float, counts: bool) -> None:
    ends = [*((0, float(second)) for second in range(1, 12)), *((1, float(second)) for second in range(12, 30))]
    looks = [look(noticed_s, a_b={"rate_bps": 10e6, "age_s": 0.1})]
    found = score(record(ends, [FIRST], looks))
    assert found.in_time == ((True,) if counts else ())


@pytest.mark.parametrize(
    ("at_s", "pace", "sent"), [(10.5, 0, True), (9.5, 0, False), (12.5, 0, False), (10.5, 1_000_000, False)]
)
def test_steps_of_links_that_transfers_passed_meanwhile_count_apart(
    at_s: float, pace: int, sent: bool, tmp_path: Path
) -> None:
    """Probes are no transfers, nor is what passed before the step or later than what counts as soon."""
    looks = [look(12.0, a_b={"rate_bps": 10e6, "age_s": 0.1})]
    heard = arrived(tmp_path, Train(at_s - 0.1, 0.1, 100_000, pace, 0))
    found = score(record(SECONDLY, [FIRST], looks, path=heard))
    assert found.soon == (True,)
    assert found.soon_where_sent == ((True,) if sent else ())


@pytest.mark.parametrize(("next_bps", "counts"), [(AFTER_BPS / 2, False), (1.9 * AFTER_BPS, False), (2e7, True)])
def test_a_step_counts_where_a_path_over_the_link_makes_it(next_bps: float, counts: bool) -> None:
    looks = [look(11.0, a_b={"rate_bps": AFTER_BPS, "age_s": 0.1})]
    states = {**record(SECONDLY, [FIRST], looks).states, "b->b-w0": (LinkRecord(0.0, next_bps, 0.0),)}
    assert score(record(SECONDLY, [FIRST], looks, states=states)).soon == ((True,) if counts else ())


def test_a_step_after_the_last_record_of_estimates_counts_for_nothing() -> None:
    """The file has a greatest length, which a run of a day may reach."""
    assert score(record(SECONDLY, [FIRST], [look(5.0, a_b={"rate_bps": 30e6, "age_s": 0.1})])).in_time == ()


def test_a_step_that_is_never_noticed_is_not_in_time() -> None:
    found = score(record(SECONDLY, [FIRST], [look(20.0, a_b={"rate_bps": 30e6, "age_s": 0.1})]))
    assert found.noticed_s == (float("inf"),)
    assert found.in_time == (False,)


def test_a_prediction_is_held_against_the_rounds_that_came_under_the_same_plan() -> None:
    ends = [*((0, float(second)) for second in range(1, 11)), *((1, 10.0 + 2 * number) for number in range(1, 9))]
    decisions = [FIRST, {"at_s": 2.5, "last": 0, "current_s": 1.1}, {"at_s": 9.0, "last": 0, "current_s": 5.0}]
    found = score(record(ends, decisions, []))
    assert found.calibration == pytest.approx((1.1,)), "after 9 s one round came under the plan"
    assert found.first_rounds == (1.0,)


def test_a_swap_is_held_against_rounds_before_and_after_and_against_the_true_rates() -> None:
    ends = [*((0, 10.0 + 2 * number) for number in range(8)), *((1, 25.0 + number) for number in range(8))]
    swap = {"at_s": 23.0, "last": 0, "epoch": 1, "reason": "period: saves", "current_s": 2.0, "proposed_s": 1.5}
    found = score(record(ends, [FIRST, swap], []))
    (one,) = found.swaps
    assert (one.promised, one.brought) == pytest.approx((0.25, 0.5))
    assert one.true is not None and one.true > 0.3, "over b the fallen link carries a's whole part"
    assert found.right == (1, 1)
    assert list(found.done_cells().values())[3:7] == ["1", "25 %", "50 %", "1 of 1"]
    assert one.stayed and one.off == pytest.approx(1 / 1.5 - 1) and one.shorter
    assert found.as_promised == 0.0, "a third shorter than promised"


def test_a_swap_after_a_step_is_held_against_the_rounds_since_then() -> None:
    ends = [*SECONDLY[:9], (0, 12.0), (0, 15.0), *((1, 15.0 + 2 * number) for number in range(1, 9))]
    swap = {"at_s": 14.0, "last": 0, "epoch": 1, "reason": "period: saves", "current_s": 3.0, "proposed_s": 2.0}
    (one,) = score(record(ends, [FIRST, swap], [])).swaps
    assert one.brought == pytest.approx(-1.0), "most of the rounds before took a second"
    assert one.shorter and one.off == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("policy", "usual_s"),
    [
        ({"policy": "packing", "own_measure": False}, 2.0),
        ({"policy": "mine", "own_measure": True}, 0.25),
        ({"policy": "packing"}, 2.0),
        ({"policy": "cpn"}, 0.25),
    ],
)
def test_a_trial_that_was_lost_is_no_swap_and_costs_what_its_rounds_took_longer(
    policy: Mapping[str, Any], usual_s: float
) -> None:
    """Costs by a policy's own measure are no seconds of rounds. Records of earlier versions have its name alone."""
    ends = [*((0, 2.0 * number) for number in range(1, 9)), *((1, 16.0 + 3 * number) for number in range(1, 4))]
    ends += [(2, 25.0 + 2 * number) for number in range(1, 7)]
    tried = {"at_s": 15.0, "last": 0, "epoch": 1, "reason": "period", "current_s": 2.0, "proposed_s": 1.0}
    back = {"at_s": 24.0, "last": 1, "epoch": 2, "reason": "period", "current_s": 3.0, "proposed_s": usual_s}
    found = score(record(ends, [FIRST, *({**line, **policy} for line in (tried, back))], []))
    assert found.swaps == ()
    assert found.trials == (TrialScore(1, 2, 15.0, 3.0),), "three rounds of 3 s, where others take 2 s"
    assert found.trials_share == pytest.approx(3.0 / 40.0)


def test_a_plan_that_was_faster_while_it_stayed_was_no_trial() -> None:
    """The controller left it because the network changed again."""
    ends = [*((0, 2.0 * number) for number in range(1, 9)), *((1, 16.0 + number) for number in range(1, 4))]
    ends += [(2, 19.0 + number) for number in range(1, 9)]
    swaps = [{"at_s": 16.0, "last": 0, "epoch": 1}, {"at_s": 19.0, "last": 1, "epoch": 2}]
    found = score(record(ends, [FIRST, *({**swap, "reason": "period", "proposed_s": 1.0} for swap in swaps)], []))
    assert [one.epoch for one in found.swaps] == [1, 2] and found.trials == ()


def test_a_plan_that_another_decision_left_was_no_trial() -> None:
    ends = [*((0, float(number)) for number in range(1, 9)), *((1, 8.0 + number) for number in range(1, 9))]
    ends += [(2, 16.0 + number) for number in range(1, 9)]
    swaps = [{"at_s": 8.0, "last": 0, "epoch": 1}, {"at_s": 16.0, "last": 1, "epoch": 2}]
    found = score(record(ends, [FIRST, *({**swap, "reason": "period"} for swap in swaps)], []))
    assert [one.epoch for one in found.swaps] == [1, 2] and found.trials == ()


def test_probes_are_a_part_of_what_links_could_carry(tmp_path: Path) -> None:
    probe, other = Train(5.0, 0.1, 100_000, 10_000_000), Train(6.0, 0.1, 500_000)
    found = score(record(SECONDLY, [FIRST], [], path=arrived(tmp_path, probe, other)))
    could = (10 * BEFORE_BPS + 30 * AFTER_BPS) / 8
    assert max(found.probed) == pytest.approx((100_000 + 1448) * 1514 / 1448 / could)
    assert sorted(found.probed)[:-1] == [0.0] * 5
    assert found.probes_share == pytest.approx(max(found.probed) / 6)


def test_a_link_that_is_down_could_carry_nothing(tmp_path: Path) -> None:
    heard = arrived(tmp_path, Train(5.0, 0.1, 100_000, 10_000_000))
    states = {"a->b": (LinkRecord(0.0, BEFORE_BPS, 0.01), LinkRecord(20.0, BEFORE_BPS, 0.01, up=False))}
    (share,) = score(record(SECONDLY, [FIRST], [], path=heard, states=states)).probed
    assert share == pytest.approx((100_000 + 1448) * 1514 / 1448 / (20 * BEFORE_BPS / 8))


def test_considering_is_a_part_of_a_processor_where_it_was_measured() -> None:
    decisions = [{**FIRST, "considered_s": 0.0}, {"at_s": 5.0, "last": 0, "considered_s": 0.5}]
    assert score(record(SECONDLY, decisions, [])).considered == pytest.approx(0.5 / 40)
    assert score(record(SECONDLY, [FIRST], [])).considered is None


def test_a_run_that_ended_before_its_first_round_has_no_shares_of_its_time() -> None:
    found = score(record([], [{**FIRST, "considered_s": 0.5}], [], manifest={}))
    assert (found.trials_share, found.considered) == (None, None)


def test_swaps_that_an_event_forced_are_left_out() -> None:
    ends = [*((0, float(second)) for second in range(1, 9)), *((1, float(second)) for second in range(9, 20))]
    forced = {"at_s": 8.0, "last": 0, "epoch": 1, "reason": "network: saves", "current_s": 1.0, "proposed_s": 0.5}
    assert score(record(ends, [FIRST, forced], [])).swaps == ()


def test_scores_of_several_runs_are_pooled() -> None:
    together = Score.together([Score(errors=(0.1,), known=(True,)), Score(errors=(-0.3, 0.2))])
    assert together.errors == (0.1, -0.3, 0.2)
    assert together.known == (True,)
    assert list(Score().known_cells().values()) == ["–", "–", "–", "–", "–", "–", "0 of 0", "0 of 0", "0 of 0"]
    assert list(Score().cost_cells().values()) == ["–", "–", "–"]
