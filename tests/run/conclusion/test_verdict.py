from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from testbed.run.conclusion import verdict
from testbed.run.conclusion.verdict import Evidence, LinkEvidence, judge

pytestmark = pytest.mark.pure

FINE_LINK = LinkEvidence(rate_error=0.001, rtt_error_s=1e-4, replay_late_p99_s=1e-3)
FINE = Evidence(
    backend="userspace",
    links={"a->b": FINE_LINK, "b->a": LinkEvidence(None, None, None)},
    cpu=[0.5] * 100,
    late_steps=0.0,
    lost_updates=0,
    duplicated_updates=0,
    identical_parameters=True,
    missed_events=[],
)


def with_link(backend: str = "userspace", **values: float | None) -> Evidence:
    return replace(FINE, backend=backend, links={"a->b": replace(FINE_LINK, **values)})


def test_nothing_wrong_is_trusted() -> None:
    assert judge(FINE).verdict == "trusted"
    assert judge(FINE).reasons == ()


@pytest.mark.parametrize("backend", ["netem", "userspace"])
@pytest.mark.parametrize(
    ("field", "tolerance", "said"),
    [
        ("rate_error", verdict.RATE_TOLERANCE, "a->b: rate"),
        ("rtt_error_s", verdict.RTT_TOLERANCE_S, "a->b: round trip"),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_link_is_judged_by_its_backend_s_tolerance(
    backend: str, field: str, tolerance: dict[str, float], said: str, sign: int
) -> None:
    assert judge(with_link(backend, **{field: sign * tolerance[backend] * 0.999})).verdict == "trusted"
    found = judge(with_link(backend, **{field: sign * tolerance[backend] * 1.001}))
    assert found.verdict == "suspect"
    assert len(found.reasons) == 1
    assert found.reasons[0].startswith(said)


def test_a_link_that_answers_no_ping_is_told_in_words() -> None:
    (reason,) = judge(with_link(rtt_error_s=inf)).reasons
    assert reason.startswith("a->b: no ping") and "inf" not in reason


def test_what_goes_around_a_link_s_shaping_is_told() -> None:
    found = judge(replace(FINE, links={"a->b": replace(FINE_LINK, unshaped_bytes=1_234_567)}))
    assert found.verdict == "suspect"
    (reason,) = found.reasons
    assert reason.startswith("a->b: 1.2 MB ")


def test_later_events_of_a_run_that_was_shortened_are_noted() -> None:
    missed = replace(FINE, missed_events=["down a-b at 70 s"])
    assert judge(missed).verdict == "suspect"
    assert judge(missed).notes == ()
    shortened = judge(replace(missed, shortened_from=180))
    assert (shortened.verdict, shortened.reasons) == ("trusted", ())
    (note,) = shortened.notes
    assert "down a-b at 70 s" in note and "180" in note
    assert judge(replace(FINE, shortened_from=180)).notes == ()
    simulated = judge(replace(missed, backend="simulated", shortened_from=180))
    assert len(simulated.reasons) == len(simulated.notes) == 1


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("field", ["rate_error", "rtt_error_s", "replay_late_p99_s"])
def test_a_figure_that_is_no_number_is_not_trusted(field: str, value: float) -> None:
    assert judge(with_link(**{field: value})).verdict == "suspect"


@pytest.mark.parametrize(
    ("fine", "wrong", "said"),
    [
        (
            with_link(replay_late_p99_s=verdict.REPLAY_LATE_P99_S),
            with_link(replay_late_p99_s=verdict.REPLAY_LATE_P99_S * 1.01),
            "5.0 ms",
        ),
        (
            replace(FINE, cpu=[1.0] * 10 + [verdict.CPU_BUSY] * 90),
            replace(FINE, cpu=[1.0] * 11 + [0.5] * 89),
            "11%",
        ),
        (
            replace(FINE, late_steps=verdict.STEP_OVERRUN_SHARE),
            replace(FINE, late_steps=0.06),
            "6%",
        ),
        (FINE, replace(FINE, lost_updates=1), "1 update"),
        (FINE, replace(FINE, duplicated_updates=2), "0 updates"),
        (FINE, replace(FINE, identical_parameters=False), "parameters"),
        (FINE, replace(FINE, identical_parameters=None), "parameters"),
        (FINE, replace(FINE, missed_events=["down a-b at 900 s"]), "down a-b at 900 s"),
        (
            with_link(replay_late_p99_s=None),
            with_link(replay_late_p99_s=None, unreplayed=True),
            "a->b: ",
        ),
        (
            with_link(rate_error=0.05, rate_resolution=0.04),
            with_link(rate_error=0.05, rate_resolution=0.02),
            "+5.0%",
        ),
    ],
)
def test_past_each_tolerance_the_run_is_suspect_with_its_reason(fine: Evidence, wrong: Evidence, said: str) -> None:
    assert judge(fine).verdict == "trusted"
    found = judge(wrong)
    assert found.verdict == "suspect"
    assert len(found.reasons) == 1
    assert said in found.reasons[0]


def test_every_reason_is_given() -> None:
    bad = replace(FINE_LINK, rate_error=0.5, rtt_error_s=0.5, replay_late_p99_s=0.5)
    evidence = Evidence("netem", {"a->b": bad, "b->a": bad}, [1.0], 1.0, 1, 1, False, [])
    assert len(judge(evidence).reasons) == 2 * 2 + 1 + 2 + 1 + 1


def test_traces_that_are_late_are_one_reason_since_one_process_replays_them() -> None:
    late = replace(FINE_LINK, replay_late_p99_s=0.02)
    links = {"a->b": late, "b->a": replace(late, replay_late_p99_s=0.03), "b->c": FINE_LINK, "c->b": late}
    (reason,) = judge(replace(FINE, links=links)).reasons
    assert reason.startswith("b->a: ") and "30.0 ms" in reason and "2 other links" in reason


def test_reasons_tell_whether_the_host_was_short_of_processor_time() -> None:
    starved, slow = replace(FINE, cpu=[1.0]), replace(FINE, late_steps=1.0)
    assert [verdict.host_was_short(judge(one).reasons) for one in (starved, slow)] == [True, True]
    assert not verdict.host_was_short(judge(replace(FINE, lost_updates=1, missed_events=["x"])).reasons)


def test_a_run_without_samples_is_not_held_against_it() -> None:
    assert judge(replace(FINE, cpu=[], links={})).verdict == "trusted"
