"""A testbed that a program uses: what changes look like from outside, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import docker
import pytest

from testbed.emulation import label
from testbed.emulation.errors import EmulationError
from testbed.emulation.links.links import Links
from testbed.emulation.links.replay import Replay
from testbed.emulation.network.holders import Namespaces, idle_requests
from testbed.emulation.process import ProcessIdentity
from testbed.emulation.shaping import ShapingError
from testbed.emulation.testbed import LiveLinks, Testbed, _remove
from testbed.link import LinkState
from testbed.spec.errors import SpecError
from testbed.spec.topology import Topology
from testbed.trace.trace import Row, Trace
from tests.cli.standing import LAN_S, ROOT, left_of, write
from tests.emulation.network.wan import Wan
from tests.emulation.recorder import Recorder
from tests.waiting import PATIENCE_S, until

#: One name for each network of this process, so that what else is up on the machine is not meant.
MARK = f"t{os.getpid()}-in"

QUITO_LIMA = ("quito", "lima", "20mbit", "10ms")
LIMA_CUZCO = ("lima", "cuzco", "20mbit", "15ms")


@pytest.mark.pure
def test_an_interrupt_leaves_no_holder_behind() -> None:
    holders = MagicMock()
    holders.remove.side_effect = [KeyboardInterrupt, None]
    with pytest.raises(KeyboardInterrupt):
        _remove(holders)
    assert holders.remove.call_count == 2


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("topologies")
    return write(folder, "line", {"quito": 1, "lima": 1, "cuzco": 1}, QUITO_LIMA, LIMA_CUZCO)


@pytest.fixture(scope="module")
def andes(line: Path) -> Iterator[Testbed]:
    """For tests that leave it as it was."""
    with Testbed(line, name=f"{MARK}-andes", workers="namespaces") as testbed:
        yield testbed


def assert_answered(testbed: Testbed, source: str, target: str, delays_s: float) -> None:
    """Assert that a ping is answered no sooner than its delays allow."""
    Wan(testbed.network).assert_answered(source, target, delays_s)


# What needs no network ----------------------------------------------------------------------------------------------


@pytest.mark.pure
def test_a_file_that_is_wrong_is_said_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("name: wrong\nsites: {paris: {worker: 1}}\nlinks: []\n")
    with pytest.raises(SpecError) as caught:
        Testbed(tmp_path / "wrong.yaml")
    assert caught.value.fields == ("sites.paris.worker",)


@pytest.mark.pure
def test_its_name_is_the_topologys_unless_another_is_given(line: Path) -> None:
    assert Testbed(line).name == Testbed(Topology.load(line)).name == "line"
    assert Testbed(line, name="other").folder == label.state_folder("other")


@pytest.mark.pure
@pytest.mark.parametrize("name", ["My Net", "a/b", "..", "andes_2"])
def test_a_name_that_no_command_could_clean_is_refused(name: str, line: Path) -> None:
    with pytest.raises(ValueError, match="small letters"):
        Testbed(line, name=name)


@pytest.mark.pure
def test_a_user_without_root_is_told_so(line: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EmulationError, match="sudo"):
        Testbed(line, workers="namespaces").__enter__()


class StillNetwork:
    """A network as far as its links' names go."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology


@pytest.mark.pure
def test_a_link_that_is_not_there_is_answered_with_those_that_are(line: Path) -> None:
    links = LiveLinks(StillNetwork(Topology.load(line)))  # type: ignore[arg-type]
    assert sorted(links) == ["cuzco->lima", "lima->cuzco", "lima->quito", "quito->lima"]
    assert len(links) == 4
    assert links["quito->lima"].name == links["quito-lima"].name == links["quito", "lima"].name == "quito->lima"
    with pytest.raises(KeyError, match="quito->cuzco"):
        links["quito->cuzco"]


@pytest.mark.pure
@pytest.mark.parametrize(("name", "value"), [("rate", "5"), ("loss", "101%"), ("delay", "-1ms")])
def test_a_value_that_cannot_be_is_refused(line: Path, name: str, value: str) -> None:
    links = LiveLinks(StillNetwork(Topology.load(line)))  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=name):
        links["quito->lima"].change(**{name: value})


class FailingNetwork:
    """A network whose swap fails after it has configured its links, and configures them as before."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.shaper = Recorder()
        self.links_in_force = Links(self.shaper, lambda *_: None)
        for link in topology.links.values():
            self.links_in_force.add(link)

    def router(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(unroutable_packets=lambda: 0)

    def swap(self, topology: Topology, holders: Mapping[str, ProcessIdentity]) -> None:
        self.links_in_force.configure(topology.links.values())
        self.links_in_force.configure(self.topology.links.values())
        raise ShapingError("on purpose")


@pytest.mark.local
def test_after_a_swap_that_was_undone_traces_are_replayed_on(line: Path) -> None:
    before, after = Topology.load(line), Topology.load(line)
    for topology, rate_bps in ((before, 1e6), (after, 2e6)):
        for name, link in topology.links.items():
            topology.links[name] = replace(link, trace=Trace((Row(0, rate_bps), Row(1, 2 * rate_bps)), "hold"))
    testbed, network = Testbed(before, workers="namespaces"), FailingNetwork(before)
    testbed.network, testbed._holders = network, MagicMock()  # type: ignore[assignment]
    testbed.replay = Replay(network.links_in_force)
    testbed.replay.start(before.links.values(), time.monotonic() + 1000)  # so that the replay stands at 0
    with pytest.raises(ShapingError):
        testbed.swap(after)
    rates = {name: [state.rate_bps for _, state in coming] for name, coming in network.shaper.coming.items()}
    testbed.replay.stop()
    assert rates == {name: [1e6, 2e6] for name in before.links}


@pytest.mark.local
def test_a_swap_that_failed_after_its_routes_had_moved_keeps_the_new_containers(line: Path) -> None:
    class Moved(FailingNetwork):
        def swap(self, topology: Topology, holders: Mapping[str, ProcessIdentity]) -> None:
            self.topology = topology
            raise ShapingError("on purpose")

    before, after = Topology.load(line), Topology.load(line)
    for name, link in after.links.items():
        after.links[name] = replace(link, state=replace(link.state, rate_bps=2e6))
    testbed, network, holders = Testbed(before, workers="namespaces"), Moved(before), MagicMock()
    testbed.network, testbed._holders = network, holders  # type: ignore[assignment]
    testbed.replay = Replay(network.links_in_force)
    with pytest.raises(ShapingError):
        testbed.swap(after)
    assert holders.replacing.return_value.__exit__.call_args.args == (None, None, None)
    holders.drop.assert_called_once_with(())


@pytest.mark.local
def test_a_replaced_container_that_is_not_removed_keeps_no_removed_worker_s(line: Path) -> None:
    class Moved(FailingNetwork):
        def swap(self, topology: Topology, holders: Mapping[str, ProcessIdentity]) -> None:
            self.topology = topology

    before, after = Topology.load(line), Topology.load(line)
    for name, link in after.links.items():
        after.links[name] = replace(link, state=replace(link.state, rate_bps=2e6))
    testbed, network, holders = Testbed(before, workers="namespaces"), Moved(before), MagicMock()
    testbed.network, testbed._holders = network, holders  # type: ignore[assignment]
    testbed.replay = Replay(network.links_in_force)
    holders.replacing.return_value.__exit__.side_effect = ShapingError("on purpose")
    with pytest.raises(ShapingError):
        testbed.swap(after)
    holders.drop.assert_called_once_with(())


# From outside -------------------------------------------------------------------------------------------------------


@pytest.mark.system
def test_a_link_is_changed_in_place(andes: Testbed) -> None:
    assert_answered(andes, "quito-w0", "cuzco-w0", 2 * (0.010 + 0.015) + LAN_S)
    link = andes.links["quito->lima"]
    before = link.counters.packets
    state = link.change(rate="5mbit", delay="30ms")
    assert (state.rate_bps, state.delay_s) == (5e6, 0.030) == (link.state.rate_bps, link.state.delay_s)
    assert_answered(andes, "quito-w0", "lima-w0", 0.030 + 0.010 + LAN_S)
    assert link.counters.packets >= before + 8
    assert andes.links["lima->quito"].state.delay_s == 0.010
    assert link.change(delay="10ms").rate_bps == 5e6, "what is left out stays"
    link.change(rate="20mbit")


@pytest.mark.system
def test_programs_resolve_the_names_of_workers(andes: Testbed) -> None:
    address = andes.network["lima-w0"].IP()
    quito = andes.network["quito-w0"]
    assert address in quito.cmd("getent hosts lima-w0")
    with quito.popen(["getent", "hosts", "lima-w0"], stdout=subprocess.PIPE, text=True) as resolving:
        assert address in resolving.communicate()[0]
    with quito.popen(["getent", "hosts", "no-worker-w9"], stdout=subprocess.PIPE, text=True) as resolving:
        assert resolving.communicate()[0] == ""
    assert resolving.returncode == 2


@pytest.mark.system
def test_a_pair_is_cut_and_mended(andes: Testbed) -> None:
    assert not andes.links["quito->lima"].take_down().up
    assert not andes.links["lima->quito"].state.up
    assert Wan(andes.network).round_trip_s("quito-w0", "lima-w0", wait_s=1) is None
    assert andes.links["lima->quito"].bring_up().up
    assert_answered(andes, "quito-w0", "lima-w0", 2 * 0.010 + LAN_S)


@pytest.mark.system
def test_a_name_is_there_once(andes: Testbed, line: Path) -> None:
    with pytest.raises(FileExistsError, match=andes.name), Testbed(line, name=andes.name, workers="namespaces"):
        pass
    assert_answered(andes, "quito-w0", "lima-w0", 2 * 0.010 + LAN_S)


@pytest.mark.system
def test_traces_are_replayed_from_entry_on(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text("time_s,rate_mbps\n0,10\n0.5,20\n1,30\n")
    value = write(tmp_path, "traced", {"quito": 1, "lima": 1}, QUITO_LIMA).read_text()
    value = value.replace("rate: 20mbit", "trace: {file: steps.csv, end: hold}")
    (tmp_path / "traced.yaml").write_text(value)
    states: list[tuple[str, LinkState]] = []
    observer = lambda _, link, state: states.append((link, state))  # noqa: E731
    with Testbed(tmp_path / "traced.yaml", name=f"{MARK}-traced", workers="namespaces", observer=observer) as testbed:
        until(lambda: testbed.links["quito->lima"].state.rate_bps == 30e6)
        assert testbed.replay.elapsed_s >= 1.0
        assert testbed.replay.failure is None
    assert [state.rate_bps for link, state in states if link == "quito->lima"] == [10e6, 20e6, 30e6]


@pytest.mark.tour
@pytest.mark.system
def test_a_swap_keeps_what_stays(line: Path) -> None:
    other = write(
        line.parent, "longer", {"quito": 2, "lima": 1, "potosi": 1}, QUITO_LIMA, ("lima", "potosi", "9mbit", "5ms")
    )
    with Testbed(line, name=f"{MARK}-swap", workers="namespaces") as testbed:
        stays, goes = testbed.network["quito-w0"].pid, Path(f"/proc/{testbed.network['cuzco-w0'].pid}")
        swapped = testbed.swap(other)
        assert swapped.difference.workers.added == ("potosi-w0", "quito-w1")
        assert (swapped.unchanged_links, swapped.lost_packets, swapped.unroutable_packets) == (2, 0, 0)
        assert testbed.network["quito-w0"].pid == stays
        until(lambda: not goes.exists())  # the kernel's thread ends a moment after Python's
        assert set(testbed.links) == {"quito->lima", "lima->quito", "lima->potosi", "potosi->lima"}
        assert_answered(testbed, "quito-w1", "potosi-w0", 2 * (0.010 + 0.005) + LAN_S)


@pytest.mark.system
def test_without_the_settings_of_ipv6_networks_work() -> None:
    """A file system hides the settings from the tests and all that they start; tests/test_guest.py has the kernel."""
    tests = (
        test_a_link_is_changed_in_place,
        test_programs_resolve_the_names_of_workers,
        test_a_pair_is_cut_and_mended,
        test_a_swap_keeps_what_stays,
    )
    named = [f"{__file__}::{test.__name__}" for test in tests]
    pytest_there = [sys.executable, "-m", "pytest", "--color=no", "-p", "no:cacheprovider", *named]
    hidden = 'mount -t tmpfs none /proc/sys/net/ipv6 && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", hidden, "sh", *pytest_there]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and f"{len(tests)} passed" in done.stdout, done.stdout + done.stderr


# Nothing is left ----------------------------------------------------------------------------------------------------


def open_namespaces() -> set[str]:
    """Names of this process's threads that hold a network namespace."""
    held = set()
    for thread in Path("/proc/self/task").iterdir():
        try:
            held.add(str((thread / "ns" / "net").readlink()))
        except OSError:
            continue  # it has ended
    return held


@pytest.mark.tour
@pytest.mark.system
def test_an_error_inside_leaves_nothing(line: Path) -> None:
    name, before, environment = f"{MARK}-error", open_namespaces(), dict(os.environ)
    with pytest.raises(ZeroDivisionError), Testbed(line, name=name, workers="namespaces") as testbed:
        asleep = testbed.network["quito-w0"].popen(["sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE)
        assert asleep.stdout.readline() == b"\n"
        helper = subprocess.Popen(["sleep", "600"])
        script = "echo; exec env -i sleep 600"  # of which nothing but its namespaces tells that it is the network's
        cleared = testbed.network["lima-w0"].popen(["sh", "-c", script], stdout=subprocess.PIPE, env={"PATH": "/bin"})
        assert cleared.stdout.readline() == b"\n"
        (daemon,) = map(int, testbed.network["quito-r"].cmd("env -i setsid sleep 600 & echo $!").split()[-1:])
        assert open_namespaces() > before
        raise ZeroDivisionError
    assert left_of(name) == []
    assert open_namespaces() == before
    assert dict(os.environ) == environment
    assert asleep.wait(PATIENCE_S) == helper.wait(PATIENCE_S) == cleared.wait(PATIENCE_S) == -signal.SIGKILL
    assert ProcessIdentity.of(daemon) is None


@pytest.mark.system
@pytest.mark.parametrize("broken", ["shaping backend", "directed links", "workers in"])
def test_an_error_on_the_way_up_leaves_nothing(line: Path, broken: str) -> None:
    name, before = f"{MARK}-up", open_namespaces()

    class Broken(Exception):
        pass

    class Step:
        def __init__(self, title: str) -> None:
            self.title = title

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            if broken in self.title:
                raise Broken

    with pytest.raises(Broken), Testbed(line, name=name, workers="namespaces", step=Step):  # type: ignore[arg-type]
        pytest.fail("it is not up")
    assert left_of(name) == []
    assert open_namespaces() == before


@pytest.mark.system
def test_step_by_step_there_is_time_in_between(line: Path) -> None:
    name = f"{MARK}-steps"
    testbed = Testbed(line, name=name)
    try:
        testbed.open()
        assert testbed.control.is_dir()
        testbed.build()
        assert testbed.links["quito->lima"].state.up
        assert testbed.replay.elapsed_s == 0.0
        testbed.start(Namespaces(), idle_requests(testbed.network.topology.workers))
        assert_answered(testbed, "quito-w0", "lima-w0", 2 * 0.010 + LAN_S)
    finally:
        testbed.close()
    testbed.close()
    assert left_of(name) == []


# In containers ------------------------------------------------------------------------------------------------------


@pytest.mark.tour
@pytest.mark.system
def test_workers_are_containers_that_see_this_network_alone(line: Path) -> None:
    name = f"{MARK}-boxes"
    with Testbed(line, name=name) as testbed:
        client = docker.from_env()
        box = client.containers.get(f"testbed-{name}.quito-w0")
        assert box.labels[label.LABEL] == name
        # By its exit code: on a busy host the engine may lose what a short command prints.
        assert box.exec_run(["sh", "-c", '[ "$(echo $(ls /sys/class/net))" = "eth0 lo" ]']).exit_code == 0
        assert_answered(testbed, "quito-w0", "cuzco-w0", 2 * (0.010 + 0.015) + LAN_S)
        pid = testbed.network["lima-w0"].pid
        limits = {"quito": 1, "lima": {"workers": 1, "cpus": 0.5}, "cuzco": 1}
        limited = write(line.parent, "limited", limits, QUITO_LIMA, LIMA_CUZCO)
        assert testbed.swap(limited).difference.workers.changed == ("lima-w0",)
        assert testbed.network["lima-w0"].pid != pid
        assert_answered(testbed, "quito-w0", "lima-w0", 2 * 0.010 + LAN_S)
    assert left_of(name) == []
