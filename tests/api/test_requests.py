"""Requests keep their fields on the way to another process, and each request has exactly its executors."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import testbed
from testbed.api.requests import (
    REQUESTS,
    AddWorker,
    ChangeGraph,
    ChangeLinks,
    ForcePlan,
    ForcePolicy,
    KillWorker,
    PauseReplay,
    RecordLaunch,
    Request,
    RestartWorker,
    Stop,
    SwapNetwork,
    request_from_json,
)

pytestmark = pytest.mark.pure

#: The files below the command line that know a request: who does it. What is asked of a run or of a standing network
#: has an executor for each; what a run passes on has the controller's beside the run's.
EXECUTORS = {
    ChangeLinks: {"run/changes.py", "emulation/daemon/subject.py"},
    SwapNetwork: {"run/changes.py", "emulation/daemon/subject.py"},
    PauseReplay: {"run/changes.py", "emulation/daemon/subject.py"},
    AddWorker: {"run/changes.py", "emulation/daemon/subject.py"},
    KillWorker: {"run/changes.py"},
    RestartWorker: {"run/changes.py"},
    ForcePolicy: {"run/changes.py", "controller/allreduce/coordinator.py"},
    ForcePlan: {"run/changes.py", "controller/allreduce/coordinator.py"},
    ChangeGraph: {"run/changes.py", "controller/gossip/coordinator.py"},
    RecordLaunch: {"emulation/daemon/subject.py"},
    Stop: {"run/changes.py", "emulation/daemon/subject.py", "controller/service.py"},
}

#: What makes requests alone: commands, and a launch.
ASKERS = ("cli/", "run/programs/standing.py")

EACH: list[tuple[Request, dict[str, Any]]] = [
    (
        ChangeLinks(links={"paris->tokyo": {"rate": None, "up": False}}),
        {"request": "ChangeLinks", "links": {"paris->tokyo": {"rate": None, "up": False}}},
    ),
    (SwapNetwork(file="/t/other.yaml"), {"request": "SwapNetwork", "file": "/t/other.yaml"}),
    (PauseReplay(paused=True), {"request": "PauseReplay", "paused": True}),
    (AddWorker(site="tokyo"), {"request": "AddWorker", "site": "tokyo"}),
    (KillWorker(worker="tokyo-w0"), {"request": "KillWorker", "worker": "tokyo-w0"}),
    (RestartWorker(worker="tokyo-w0"), {"request": "RestartWorker", "worker": "tokyo-w0"}),
    (ForcePolicy(policy="mst"), {"request": "ForcePolicy", "policy": "mst"}),
    (ForcePlan(plan={"epoch": 1}), {"request": "ForcePlan", "plan": {"epoch": 1}}),
    (ChangeGraph(kind="ring"), {"request": "ChangeGraph", "kind": "ring"}),
    (
        RecordLaunch(kind="launch", target="pair-1: python train.py"),
        {"request": "RecordLaunch", "kind": "launch", "target": "pair-1: python train.py"},
    ),
    (Stop(reason="enough"), {"request": "Stop", "reason": "enough"}),
]


@pytest.mark.parametrize(("request_", "value"), EACH, ids=lambda each: type(each).__name__)
def test_a_request_has_the_same_fields_on_the_other_side(request_: Request, value: dict[str, Any]) -> None:
    assert request_.to_json() == value
    assert request_from_json(value) == request_
    assert request_from_json(value).model_fields_set == request_.model_fields_set


def test_all_requests_are_tried() -> None:
    assert [type(request) for request, _ in EACH] == list(REQUESTS)


@pytest.mark.parametrize("value", [None, [], {}, {"request": "Explode"}])
def test_what_is_no_request_is_refused_with_those_that_are(value: Any) -> None:
    with pytest.raises(ValueError, match="KillWorker"):
        request_from_json(value)


@pytest.mark.parametrize("value", [{}, {"worker": 1}, {"worker": "a", "signal": 9}])
def test_a_request_with_other_fields_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        request_from_json({"request": "KillWorker", **value})


def test_a_request_is_known_to_its_executors_and_to_no_other_file() -> None:
    """A request travels as a value: a new one changes its class, its executor and its callers alone."""
    package = Path(testbed.__file__).parent
    found: dict[type[Request], set[str]] = {kind: set() for kind in REQUESTS}
    names = {kind.__name__: kind for kind in REQUESTS}
    for file in sorted(package.rglob("*.py")):
        place = str(file.relative_to(package))
        if place.startswith(("api/", *ASKERS)):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "testbed.api.requests":
                for name in node.names:
                    if name.name in names:
                        found[names[name.name]].add(place)
    assert found == EXECUTORS


def test_a_path_names_all_fields_of_a_request_or_none() -> None:
    for kind in REQUESTS:
        named = set(re.findall(r"{(\w+)}", kind.ROUTE[1]))
        assert named in (set(), set(kind.model_fields))
