"""Requests that change a network, over recorders in its place."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from testbed.api.models import LinkPatch
from testbed.api.requests import CANNOT, FAILED, MISSING, NOT_HERE, ApiProblem
from testbed.emulation.daemon.handlers import as_api_problem, check_file, pairs_of, pause_replay
from testbed.emulation.errors import EmulationError
from testbed.link import LinkState, Opportunities
from testbed.spec.errors import SpecError
from testbed.spec.topology import Link
from testbed.trace.trace import Row, Trace

STATE = LinkState(rate_bps=50e6, delay_s=0.02)
DELIVERED = Link("a", "b", STATE, Trace((Row(0, 40e6),), opportunities=Opportunities((1, 2, 3))))


@pytest.mark.pure
def test_a_packet_delivery_trace_cannot_be_paused_but_resumed() -> None:
    """As after a pause, and a swap to a network with such a trace."""
    topology = SimpleNamespace(links={DELIVERED.name: DELIVERED})
    testbed: Any = SimpleNamespace(network=SimpleNamespace(topology=topology), replay=MagicMock())
    with pytest.raises(ApiProblem) as caught:
        pause_replay(testbed, True)
    assert caught.value.status == NOT_HERE
    testbed.replay.pause.assert_not_called()
    pause_replay(testbed, False)
    testbed.replay.resume.assert_called_once()


@pytest.mark.local
@pytest.mark.parametrize("file", ["nowhere.yaml", "/" + 300 * "a"])
def test_a_file_that_is_not_there_is_missing(file: str) -> None:
    with pytest.raises(ApiProblem) as caught:
        check_file(Path(file))
    assert caught.value.status == MISSING


@pytest.mark.pure
def test_a_pair_is_not_taken_up_and_down_by_one_request() -> None:
    up, down, rate = LinkPatch(up=True), LinkPatch(up=False), LinkPatch(rate="5mbit")
    with pytest.raises(SpecError) as caught:
        pairs_of({"a->b": up, "b->a": down})
    assert caught.value.fields == ("up",)
    assert pairs_of({"a->b": up, "b->a": rate, "b->c": down}) == [("a", "b", True), ("b", "c", False)]


@pytest.mark.pure
def test_a_pair_of_which_both_links_are_taken_down_goes_down_once() -> None:
    down = LinkPatch(up=False)
    assert pairs_of({"a->b": down, "b->a": down, "b->c": down}) == [("a", "b", False), ("b", "c", False)]


@pytest.mark.pure
@pytest.mark.parametrize(("error", "status"), [(EmulationError("no room"), CANNOT), (ZeroDivisionError(), FAILED)])
def test_only_an_unforeseen_error_of_a_request_is_logged_with_its_traceback(
    error: Exception, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ApiProblem) as caught, as_api_problem():
        raise error
    assert caught.value.status == status
    (record,) = caplog.records
    assert (record.exc_info is None) == (status == CANNOT)
