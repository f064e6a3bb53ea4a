"""The ratios of Hop's figures, under simulated time."""

from __future__ import annotations

import pytest

from testbed.planning.graphs import make_graph
from testbed.schemes.hop.reception import HopRules
from tests.schemes.hop.figures import (
    BACKUP,
    FOUR_TOGETHER,
    MEMBERS,
    leaping,
    random_rows,
    stragglers,
    time_to_finish,
)

pytestmark = pytest.mark.pure

#: The figures of record come of other random slowdowns: three seeds of ours are within 10 % of them.
TOLERANCE = 0.1


@pytest.mark.parametrize(
    ("family", "standard", "backup"), [("ring", 430, 334), ("ring-based", 468, 349), ("double-ring", 488, 372)]
)
def test_a_backup_worker_hides_random_slowdowns(family: str, standard: float, backup: float) -> None:
    ours = random_rows(make_graph(family, MEMBERS), seed=0)
    assert ours == pytest.approx((standard, backup), rel=TOLERANCE)
    assert ours[0] / ours[1] == pytest.approx(standard / backup, rel=TOLERANCE)


@pytest.mark.parametrize(("rules", "time"), [(BACKUP, 800), (leaping(2), 408), (leaping(10), 204)])
def test_leaps_alone_help_against_a_straggler(rules: HopRules, time: float) -> None:
    assert time_to_finish(make_graph("ring", MEMBERS), rules, stragglers("w0")) == pytest.approx(time, rel=0.03)


def test_stragglers_that_are_neighbours_hide_their_lag_from_the_minimum_only() -> None:
    graph = make_graph("ring-based", MEMBERS)
    times = [time_to_finish(graph, leaping(10, q), stragglers(*FOUR_TOGETHER)) for q in (0.0, 0.75)]
    assert times[0] > 3 * times[1]
