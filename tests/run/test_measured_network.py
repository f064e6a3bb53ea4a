"""The checks of a run's network before it is built."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from testbed.emulation.links.links import Links
from testbed.emulation.links.probe import LinkFidelity
from testbed.emulation.shaping import ShapingError
from testbed.run.measured_network import FidelityMeasurements, build_and_measure
from testbed.spec.experiment import Experiment
from tests.emulation.recorder import Recorder
from tests.spec.files import EXPERIMENT, write


@pytest.mark.pure
def test_the_jitter_of_an_event_is_refused_before_the_network_is_built(tmp_path: Path) -> None:
    event = {"at": "2s", "change": {"link": "paris->tokyo", "jitter": "3s"}}
    experiment = Experiment.load(write(tmp_path, experiment={**EXPERIMENT, "events": [event]}))
    shaper, testbed = Recorder(), MagicMock()
    shaper.most_jitter_s = 2.0
    testbed.network.links_in_force = Links(shaper, lambda *_: None)
    with pytest.raises(ShapingError) as refused:
        build_and_measure(experiment, testbed, None, MagicMock(), MagicMock(), False)
    assert (refused.value.rule, refused.value.link) == ("jitter", "paris->tokyo")
    testbed.build.assert_not_called()


@pytest.mark.pure
def test_a_link_that_comes_back_keeps_the_errors_of_its_first_life() -> None:
    name, testbed = "a->b", MagicMock()
    testbed.measure.side_effect = [{name: LinkFidelity(-0.05, 1e-3, 0.01)}, {name: LinkFidelity(0.0, -2e-3, 0.01)}]
    counters = testbed.network.shaper.counters
    measured = FidelityMeasurements(testbed)
    for error in (-0.05, 0.0):
        counters.return_value = {name: MagicMock(rate_error=error)}
        measured.keep()
    measured.follow_swap({name})
    assert measured.measured == {name: LinkFidelity(-0.05, -2e-3, 0.01)}
    assert measured.rate_errors == {name: -0.05}
