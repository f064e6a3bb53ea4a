"""The controller as a process: its options, its owner's socket, its end."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.api.requests import ForcePolicy, Stop
from testbed.controller.client import ControllerClient, ControllerError
from testbed.controller.model.spec import ControllerSpec, load_spec
from tests.controller.fleet import Fleet
from tests.controller.runs import mesh, spec_of
from tests.program import ForkedProgram, preload
from tests.waiting import PATIENCE_S, happens

pytestmark = pytest.mark.local

preload("testbed.controller.serve")


def command(tmp_path: Path, spec: Path) -> list[str]:
    """Return the arguments of `python` that start a controller."""
    options = {"sockets": tmp_path / "run/control", "owner": tmp_path / "run/owner.sock", "spec": spec}
    words = [word for name, path in options.items() for word in (f"--{name}", str(path))]
    return ["-m", "testbed.controller", *words, "--out", str(tmp_path / "out")]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[ControllerClient]:
    """A client of a controller process, which must end cleanly on SIGTERM."""
    spec = tmp_path / "spec.json"
    spec.write_text(spec_of(mesh()).model_dump_json())
    with ForkedProgram(*command(tmp_path, spec)) as process:
        client = ControllerClient(tmp_path / "run/owner.sock")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                client.status()
                break
            except ControllerError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
        yield client
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.wait() == 0, errors
    assert "Traceback" not in errors, errors
    assert not [path for path in (tmp_path / "run").rglob("*") if not path.is_dir()]


async def test_the_owner_reads_a_run_and_makes_requests(tmp_path: Path, client: ControllerClient) -> None:
    assert client.status()["state"] == "waiting"
    fleet = Fleet(tmp_path / "run/control", mesh())
    await fleet.join()
    await fleet.run(3)
    star = ForcePolicy(policy="star", options={"server": "d-w0"})
    await asyncio.to_thread(client.do, star)
    await happens(lambda: all(1 in member.plans for member in fleet.members.values()))
    await fleet.run(2)
    await fleet.leave()
    status = client.status()
    assert status["state"] == "done" and status["round"] == 4 and status["epoch"] == 1
    assert client.plan().trees[0].root == "d-w0"
    assert [done["round"] for done in client.rounds(since=3)] == [3, 4]
    assert client.rounds()[0]["seconds"] > 0
    assert json.loads((tmp_path / "out/final.json").read_text())["swaps"][0]["epoch"] == 1


def test_bad_requests_are_refused_with_the_reason(client: ControllerClient) -> None:
    view = mesh()
    with pytest.raises(ControllerError, match="hierarchical"):
        client.do(ForcePolicy(policy="best"))
    with pytest.raises(ControllerError):
        client.change_network({}, view.routes)
    client.change_network(view.links, view.routes)


def test_stop_fails_a_run_that_is_not_done(tmp_path: Path, client: ControllerClient) -> None:
    client.do(Stop(reason="the user pressed Ctrl-C"))
    assert client.status()["failure"] == "the user pressed Ctrl-C"
    assert json.loads((tmp_path / "out/final.json").read_text())["state"] == "failed"


def test_nobody_at_the_socket_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(ControllerError, match="nobody"):
        ControllerClient(tmp_path / "nobody").status()


def test_the_spec_comes_back_as_it_was_written(tmp_path: Path) -> None:
    spec = spec_of(mesh(), policy="star", options={"server": "a-w0"})
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    assert load_spec(tmp_path / "spec.json") == spec


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"planning": {"policy": "best"}}, "best"),
        ({"planning": {"options": {"server": "a-w0"}}}, "server"),
        ({"members": ["a-w0"]}, "members"),
        ({"secret": ""}, "secret"),
        ({"members": ["../a"]}, "../a"),
        ({"members": ["a", "a"]}, "members"),
        ({"jobs": {}}, "jobs"),
        ({"planning": {"margin": 1.5}}, "margin"),
        ({"planning": {"view": {}}}, "view"),
        ({"planning": None}, "`planning`.*`graph`"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_spec_that_cannot_be_used_is_refused(change: dict, says: str) -> None:
    value = json.loads(spec_of(mesh()).model_dump_json())
    changed = {**value, **change}
    if change.get("planning"):
        changed["planning"] = {**value["planning"], **change["planning"]}
    with pytest.raises(ValueError, match=says):
        ControllerSpec.model_validate_json(json.dumps(changed))


def test_a_spec_that_cannot_be_used_ends_the_process_with_2(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text("{}")
    with ForkedProgram(*command(tmp_path, tmp_path / "spec.json")) as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.wait() == 2
    assert "spec.json" in errors and "Traceback" not in errors


def test_a_controller_whose_parent_died_while_it_was_starting_ends(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(spec_of(mesh()).model_dump_json())
    with subprocess.Popen(["true"]) as dead:
        dead.wait(PATIENCE_S)
    with ForkedProgram(*command(tmp_path, spec), "--parent", str(dead.pid)) as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.wait() == 0, errors
    assert not (tmp_path / "run").exists()
