"""The proof that a process is a container's, which is read from /proc: here from a folder that stands for it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.emulation import process
from testbed.emulation.containers import proof
from testbed.emulation.containers.proof import ForeignEngineError, proven_process
from testbed.emulation.process import PF_EXITING, ProcessIdentity

CONTAINER = secrets.token_hex(32)
PID = 212

Write = Callable[..., None]

#: How engines lay control groups out, and how they look from within a control group namespace.
OURS = {
    "v1": f"12:pids:/docker/{CONTAINER}\n1:name=systemd:/docker/{CONTAINER}\n",
    "v2": f"0::/system.slice/docker-{CONTAINER}.scope\n",
    "v2, with groups of the container's own": f"0::/system.slice/docker-{CONTAINER}.scope/init\n",
    "from a container beside it": f"0::/../{CONTAINER}\n",
    "in an engine in a container": f"0::/docker/{secrets.token_hex(32)}/docker/{CONTAINER}\n",
}
STRANGERS = {
    "this machine's": "0::/system.slice/ssh.service\n",
    "another container's": f"0::/system.slice/docker-{secrets.token_hex(32)}.scope\n",
    "without groups": "",
}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes a process into the folder that stands for /proc."""
    for module in (process, proof):
        monkeypatch.setattr(module, "PROC", tmp_path)
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/net").touch()

    def written(groups: str, own_network: bool = True, state: str = "S", flags: int = 0, ticks: int = 7) -> None:
        folder = tmp_path / str(PID)
        (folder / "ns").mkdir(parents=True)
        (folder / "stat").write_text(f"{PID} (a b) {state} 1 2 3 4 5 {flags} {'0 ' * 12}{ticks} 0\n")
        (folder / "cgroup").write_text(groups)
        if own_network:
            (folder / "ns/net").touch()
        else:
            (folder / "ns/net").hardlink_to(tmp_path / "self/ns/net")

    return written


@pytest.mark.pure
@pytest.mark.parametrize("groups", OURS.values(), ids=OURS)
def test_a_container_s_process_is_proven(write: Write, groups: str) -> None:
    write(groups)
    found = proven_process(CONTAINER, PID)
    assert isinstance(found, ProcessIdentity) and (found.pid, found.start_ticks) == (PID, 7)


@pytest.mark.pure
@pytest.mark.parametrize("groups", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_of_the_same_number_is_refused(write: Write, groups: str) -> None:
    write(groups)
    with pytest.raises(ForeignEngineError) as caught:
        proven_process(CONTAINER, PID)
    assert (caught.value.container, caught.value.pid) == (CONTAINER, PID)


@pytest.mark.pure
def test_a_process_in_this_machine_s_own_network_is_refused(write: Write) -> None:
    write(OURS["v2"], own_network=False)
    with pytest.raises(ForeignEngineError):
        proven_process(CONTAINER, PID)


@pytest.mark.pure
@pytest.mark.parametrize(("state", "flags"), [("R", PF_EXITING), ("Z", PF_EXITING), ("X", 0)])
def test_one_that_is_ending_is_no_stranger(write: Write, state: str, flags: int) -> None:
    """The kernel takes it out of its control group before it is a zombie."""
    write("0::/\n", state=state, flags=flags)
    assert proven_process(CONTAINER, PID) is None


@pytest.mark.pure
def test_one_that_has_ended_is_none(write: Write) -> None:
    assert proven_process(CONTAINER, PID) is None
