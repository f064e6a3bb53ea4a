"""Calls in another namespace: sockets made there stay there, and errors are raised in the caller."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from testbed.emulation.errors import EmulationError
from testbed.emulation.network.namespace import Namespace, held_by, inside
from testbed.emulation.network.node import ContainerHost, Interface
from testbed.emulation.process import ProcessIdentity
from testbed.errors import CANNOT

pytestmark = pytest.mark.system


def interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def test_it_happens_there_and_nothing_changes_here() -> None:
    here = Path("/proc/thread-self/ns/net").readlink()
    namespace = Namespace()
    try:
        assert inside(namespace.path, interfaces) == ["lo"]
    finally:
        namespace.close()
    assert Path("/proc/thread-self/ns/net").readlink() == here


def test_it_is_let_go_at_once() -> None:
    namespace = Namespace()
    before = namespace.path.readlink()
    namespace.close()
    namespace.close()
    with pytest.raises(FileNotFoundError):
        while namespace.path.readlink() != before:  # the kernel's thread has left it, and is about to end
            pass


def test_a_process_that_has_ended_holds_none() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert held_by(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not held_by(process.pid), "a zombie does"


def test_what_is_no_namespace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        inside(tmp_path / "none", interfaces)
    (tmp_path / "file").touch()
    with pytest.raises(OSError) as caught:
        inside(tmp_path / "file", interfaces)
    assert caught.value.errno == errno.EINVAL


def test_an_error_inside_comes_out() -> None:
    def fail() -> None:
        raise KeyError("w0")

    with pytest.raises(KeyError, match="w0"):
        inside(Path("/proc/self/ns/net"), fail)


def test_an_interface_goes_with_what_held_its_namespace() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        holder = ProcessIdentity.of(process.pid)
        assert holder is not None
        process.kill()
    node = ContainerHost("lima-w0", holder)
    interface: Any = Interface.__new__(Interface)
    interface.node, interface.index, interface.link = node, 2, "a pair"
    interface.delete()
    assert interface.link is None


@pytest.mark.parametrize(("number", "remedy"), [(errno.EPERM, "as root"), (errno.ENOSPC, "user.max_net_namespaces")])
def test_a_kernel_that_makes_none_is_a_machine_that_can_t(
    number: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("testbed.emulation.network.namespace.call", refuse)
    with pytest.raises(EmulationError, match=remedy) as caught:
        Namespace()
    assert (caught.value.exit_code, caught.value.rule) == (CANNOT, "namespace")
