from __future__ import annotations

from pathlib import Path

import pytest

from testbed.controller.replanning.track_record import TrackRecord
from tests.controller.runs import mesh, spec_of
from tests.controller.simulated import simulated

pytestmark = pytest.mark.pure


def test_rounds_over_the_network_before_say_nothing_of_the_one_that_is_declared(tmp_path: Path) -> None:
    view = mesh()
    with simulated(spec_of(view, hold=True), tmp_path, view, seed=0) as fleet:
        track = TrackRecord(fleet.group)
        fleet.run(5)
        assert track.standing(fleet.group.clocks.unix()).newest_s
        track.redeclare()
        assert track.standing(fleet.group.clocks.unix()).newest_s == ()
        fleet.run(1)
        assert track.standing(fleet.group.clocks.unix()).newest_s == (), "that round was on"
        fleet.run(1)
        assert track.standing(fleet.group.clocks.unix()).newest_s
