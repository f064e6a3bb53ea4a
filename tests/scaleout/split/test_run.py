"""The plan of a split network within its hosts' budgets, and its workers, led to the controller's sockets."""

from __future__ import annotations

import os
import shlex
import socket
import stat
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from testbed.emulation.errors import EmulationError
from testbed.emulation.host.budget import Budget
from testbed.run.guards import Guard
from testbed.scaleout.split import run as split_run
from testbed.scaleout.split.cut_links import HostsNetwork
from testbed.scaleout.split.host import MOST_FOLDER_BYTES, SplitHost
from testbed.scaleout.split.hosts import HostLost, SplitHosts
from testbed.scaleout.split.plan import Capacity, SplitPlan, plan_split
from testbed.scaleout.split.run import MODULE, Machine, SplitFleet, SplitRun, check_versions
from testbed.scaleout.ssh import PATH, Ssh
from testbed.spec.experiment import Experiment
from testbed.spec.hosts import Host
from tests.run.conclusion.test_bounds import SMOKE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SOCKET = "control.sock"


class Access:
    """Access to a host whose SSH server opens the sockets that it is asked to forward."""

    def __init__(self) -> None:
        self.forwarded: dict[Path, Path] = {}
        self.failure: str | None = None

    @contextmanager
    def forwarding(self, sockets: Mapping[Path, Path], folder: Path) -> Iterator[Access]:
        for there, here in sockets.items():
            self.forwarded[there] = folder / here
            opened(there, 0o600)
        yield self
        self.forwarded.clear()


class OneHost:
    """The hosts of a run, each with a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def call(self, host: str, method: str, *arguments: Any) -> Any:
        part = SimpleNamespace(folder=self.folder / host, control=self.folder / host / "control")
        part.control.mkdir(parents=True, exist_ok=True)
        return getattr(SplitHost, method)(cast(SplitHost, SimpleNamespace(name=host, part=part)), *arguments)


def opened(path: Path, mode: int) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
    path.chmod(mode)


@pytest.mark.local
def test_workers_get_the_controllers_socket_here_and_a_forwarded_one_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_UID", str(os.getuid()))
    access, run = Access(), SplitRun.__new__(SplitRun)
    run._machines = {
        "north": Machine(IPv4Address("10.0.0.1"), None),
        "south": Machine(IPv4Address("10.0.0.2"), cast(Ssh, access)),
    }
    run._host_of = {"lima-w0": "north", "quito-w0": "south", "quito-w1": "south"}
    run._hosts, run._forwardings = cast(Any, OneHost(tmp_path)), []
    control = tmp_path / "control"
    for worker in run._host_of:
        (control / worker).mkdir(parents=True)
        opened(control / worker / SOCKET, 0o666)
    with Guard() as guard:
        run.connect(cast(Any, SimpleNamespace(control=control)), guard)
        given = {worker: tmp_path / host / "control" / worker / SOCKET for worker, host in run._host_of.items()}
        assert given["lima-w0"].samefile(control / "lima-w0" / SOCKET)
        for worker in ("quito-w0", "quito-w1"):
            (there,) = (path for path in access.forwarded if path.samefile(given[worker]))
            assert access.forwarded[there] == control / worker / SOCKET
        for path in given.values():
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
        assert stat.S_IMODE((tmp_path / "south" / "s").stat().st_mode) == 0o700
        assert run.broken() is None
        access.failure = "south: connection reset"
        assert run.broken() == "south: connection reset"


@pytest.mark.local
@pytest.mark.parametrize(("bits_per_second", "searches"), [(10e9, [True]), (1e6, [True, False])])
def test_a_split_without_budgets_is_searched_only_where_the_budgets_are_too_small(
    bits_per_second: float, searches: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    limited: list[bool] = []

    def counted(
        topologies: Any, cores: Any, hosts: Mapping[str, tuple[IPv4Address, Capacity]], *rest: Any
    ) -> SplitPlan:
        limited.append(any(capacity != Capacity() for _, capacity in hosts.values()))
        return plan_split(topologies, cores, hosts, *rest)

    monkeypatch.setattr(split_run, "plan_split", counted)
    run, pair = SplitRun.__new__(SplitRun), frozenset(("north", "south"))
    run.experiment = Experiment.load(SMOKE)
    run._machines = {name: Machine(IPv4Address(f"10.0.0.{n}"), None) for n, name in enumerate(sorted(pair), 1)}
    budgets = dict.fromkeys(run._machines, Budget("", bits_per_second, {"cnn": 0.01}, 64, 0.0, 0.0))
    underlay = HostsNetwork({pair: 1e-3}, {pair: 1500})
    run._hosts = cast(Any, SimpleNamespace(underlay=lambda: underlay, each=lambda *_: budgets))
    plan, excess = run._fitting_plan()
    assert limited == searches
    assert set(plan.assignment.host_of.values()) == pair
    assert (excess is None) == (len(searches) == 1)


@pytest.mark.pure
@pytest.mark.parametrize(("user", "first"), [("root", "bash"), ("admin", "sudo")])
def test_a_host_s_process_finds_the_tools_of_the_network(user: str, first: str) -> None:
    access = Ssh("south", Host.model_validate({"address": "10.0.0.2", "user": user}), None, None)
    *client, script = Machine(IPv4Address("10.0.0.2"), access).command
    assert client == access.client(alive_s=5, alive_count=3)
    words = shlex.split(script)
    assert words[0] == first
    assert f"export {PATH}; " in words[-1] and words[-1].endswith(f" -m {MODULE}")


@pytest.mark.local
def test_hosts_with_another_version_are_named(tmp_path: Path) -> None:
    check_versions({"a": "1", "b": "1", "c": "1"})
    with pytest.raises(EmulationError, match=r"^b and"):
        check_versions({"a": "1", "b": "2", "c": "1"})


@pytest.mark.local
def test_the_workers_of_a_lost_host_do_not_run_and_those_of_others_are_asked() -> None:
    class Hosts:
        hosts = dict.fromkeys("abc")

        def call(self, host: str, method: str) -> dict[str, bool]:
            if host == "a":
                raise HostLost("a is lost", host="a")
            return {"y": True} if host == "b" else {}

    fleet = SplitFleet.__new__(SplitFleet)
    fleet._hosts, fleet._host_of = cast(SplitHosts, Hosts()), {"x": "a", "y": "b", "not started": "c"}
    assert fleet.running() == {"x": False, "y": True}


@pytest.mark.local
def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="shorter name") as caught:
        OneHost(tmp_path / ("x" * MOST_FOLDER_BYTES)).call("south", "forwarded_folder")
    assert "south" in str(caught.value)
