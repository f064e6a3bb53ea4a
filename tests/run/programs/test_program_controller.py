"""The reasons for links and controllers that were not used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from testbed.launch.ranks import Rank
from testbed.plan import PLAIN_CODEC
from testbed.run.conclusion.verdict import judge, unused_links
from testbed.run.programs.program_controller import ProgramController
from testbed.run.view import declared_states
from testbed.spec.topology import Topology
from testbed.trace.trace import Row, Trace
from tests.run.conclusion.test_verdict import FINE

pytestmark = pytest.mark.local

LINKS = ["paris->tokyo", "tokyo->paris"]


def controller_of(folder: Path, variable: str, setting: str, codec: str = PLAIN_CODEC) -> ProgramController:
    topology = Topology.load(Path("quickstart"))
    ranks = [Rank(worker.name, worker.name, {}) for worker in topology.workers]
    return ProgramController(topology, None, ranks, folder, folder, {variable: setting}, codec)


def test_every_plan_has_the_codec_of_the_scheme(tmp_path: Path) -> None:
    controller = controller_of(tmp_path, "TESTBED_SCHEME", "muloco", "bins2")
    planning = controller._controller._spec.planning
    assert planning is not None and planning.codec == "bins2"
    assert {job.round_timeout_s for job in controller._controller._spec.jobs.values()} == {1800.0}
    assert planning.measured_bytes


def test_plans_are_made_over_the_routes_around_links_that_are_down(tmp_path: Path) -> None:
    topology = Topology.load(Path("netstorm9-static"))
    down = {"dc8->dc9", "dc9->dc8"}
    states = {name: replace(state, up=name not in down) for name, state in declared_states(topology).items()}
    ranks = [Rank(worker.name, worker.name, {}) for worker in topology.workers]
    controller = ProgramController(topology, states, ranks, tmp_path, tmp_path, {"TESTBED_BACKEND": "wan"})
    planning = controller._controller._spec.planning
    assert planning is not None
    assert ("dc6-w0", "dc9-w0") in planning.view.edges
    assert not down.intersection(*planning.view.routes.values())
    assert set(planning.make_policy().plan(planning.view).members) == set(planning.view.names)


def test_routes_go_into_a_link_whose_trace_is_over(tmp_path: Path) -> None:
    topology = Topology.load(Path("netstorm9-static"))
    name = "dc8->dc9"
    stopped = replace(topology.links[name], trace=Trace((Row(0.0, 1e6), Row(1.0, 1e6)), end="stop"))
    topology = replace(topology, links={**topology.links, name: stopped})
    states = {link: replace(state, up=link != name) for link, state in declared_states(topology).items()}
    ranks = [Rank(worker.name, worker.name, {}) for worker in topology.workers]
    variables = {"TESTBED_BACKEND": "wan"}
    over = ProgramController(topology, states, ranks, tmp_path, tmp_path, variables, elapsed_s=9.0)
    planning = over._controller._spec.planning
    assert planning is not None
    assert ("dc8-w0", "dc9-w0") not in planning.view.edges and ("dc6-w0", "dc9-w0") not in planning.view.edges


def test_an_interrupt_while_the_controller_is_asked_for_the_last_time_ends_it_all_the_same(tmp_path: Path) -> None:
    controller = controller_of(tmp_path, "TESTBED_SCHEME", "muloco")
    ended: list[bool] = []
    controller._stack.callback(ended.append, True)
    controller.client = client = MagicMock()
    client.status.side_effect = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        controller.__exit__()
    assert ended == [True]


def test_links_without_a_byte_are_named_with_the_way() -> None:
    assert unused_links(LINKS, ["paris", "tokyo"], 1) == ""
    assert unused_links([], ["paris"], 0) == "", "nothing was to be emulated"
    said = unused_links(LINKS, ["paris", "tokyo"], 0)
    assert "nothing was emulated" in said
    assert "MASTER_ADDR" in said
    assert "in paris" in unused_links(LINKS, ["paris"], 0)


@pytest.mark.parametrize(
    ("name", "outcome", "said"),
    [
        ("scheme", {"joined": [], "round": None, "state": "running"}, "no process joined the controller"),
        ("wan", {"joined": [], "round": None, "state": "not started"}, "no process joined the controller"),
        ("scheme", {"joined": ["a", "b"], "round": None, "state": "done"}, "0 rounds"),
        ("scheme", {"joined": ["a", "b"], "round": 1, "state": "done"}, "0 rounds"),
        ("wan", {"joined": ["a", "b"], "round": None, "state": "done"}, "0 rounds"),
        ("wan", {"joined": ["a", "b"], "round": 9, "state": "failed", "failure": "Broken pipe"}, ""),
        ("scheme", {"joined": [], "round": None, "state": "failed", "failure": "Broken pipe"}, ""),
        ("scheme", {"joined": ["a", "b"], "round": 2, "state": "done"}, ""),
        ("wan", {"joined": ["a", "b"], "round": 1, "state": "done"}, ""),
    ],
)
def test_a_controller_that_was_there_for_nothing_says_why(
    tmp_path: Path, name: str, outcome: dict[str, Any], said: str
) -> None:
    variable = {"scheme": "TESTBED_SCHEME", "wan": "TESTBED_BACKEND"}[name]
    controller = controller_of(tmp_path, variable, "diloco:every=32")
    controller.outcome = outcome
    found = controller.idle
    assert said in found
    assert bool(said) == bool(found)
    assert not found or "diloco:every=32" in found


@pytest.mark.parametrize("joined", [[], ["a", "b"]])
@pytest.mark.parametrize("failure", ["Broken pipe", ""])
def test_a_controller_that_gave_up_is_a_failure_with_its_reason(
    tmp_path: Path, joined: list[str], failure: str
) -> None:
    controller = controller_of(tmp_path, "TESTBED_SCHEME", "diloco:every=32")
    controller.outcome = {"joined": joined, "round": 9, "state": "failed", "failure": failure}
    found = controller.failure
    assert "diloco:every=32" in found
    assert failure in found
    controller.outcome |= {"state": "done"}
    assert controller.failure == ""


def test_a_verdict_says_what_did_nothing() -> None:
    found = judge(replace(FINE, idle=["no link was used"]))
    assert (found.verdict, found.reasons) == ("suspect", ("no link was used",))
