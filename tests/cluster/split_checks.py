"""Networks split over hosts that fail in one way each: the verdict names the failure as a reason.

A host is a network namespace with a process for its part; nothing trains, so each test takes some ten seconds. Other
work on this machine starves all hosts, which is a reason as well; tests for another reason leave that one out.

    python -m pytest tests/cluster/split_checks.py
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_bytes, token_hex
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from benchmarks.support.pretended import PretendedHosts
from testbed.emulation import label
from testbed.emulation.cleanup import clean
from testbed.emulation.errors import EmulationError
from testbed.emulation.shaping import ShapingError
from testbed.link import LinkState
from testbed.run.conclusion.verdict import RATE_TOLERANCE, RTT_TOLERANCE_S, STARVED
from testbed.run.errors import CannotRun
from testbed.scaleout.split.host import PartSettings
from testbed.scaleout.split.hosts import HostLost, HostProcess, SplitHosts
from testbed.scaleout.split.plan import Capacity, plan_split
from testbed.scaleout.split.testbed import SplitTestbed
from testbed.scaleout.ssh import Ssh
from testbed.spec.errors import SpecError
from testbed.spec.event import LinkChange
from testbed.spec.hosts import Host
from testbed.spec.topology import Topology
from tests.cluster.pretended import DELAY_S, EARLY_S, SSHD
from tests.waiting import until

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
#: Workers are namespaces, without containers.
SETTINGS = PartSettings(workers="namespaces")
#: Seven stretches of two seconds, from which drift is told.
SEEN_S = 14.0

NETWORK = """
name: andes
sites: {lima: {workers: 1}, quito: {workers: 1}, cuzco: {workers: 1}}
links:
  - {between: [lima, quito], rate: 20mbit, delay: 10ms}
  - {between: [lima, cuzco], rate: 50mbit, delay: 5ms}
"""
OTHER = NETWORK.replace("{between: [lima, quito], rate: 20mbit,", "{between: [cuzco, quito], rate: 10mbit,")

LIBRARY = next(
    (str(path) for root in ("/usr", "build/libfaketime") for path in Path(root).glob("**/libfaketimeMT.so.1")), None
)
needs_faketime = pytest.mark.skipif(LIBRARY is None, reason="no libfaketime: apt-get install faketime")


def topology(text: str = NETWORK) -> Topology:
    return Topology.from_value(yaml.safe_load(text), Path("andes.yaml"))


def faked(time_: str, monotonic: bool) -> list[str]:
    """Return the words before a command that have it see another time."""
    assert LIBRARY is not None
    keep = [] if monotonic else ["DONT_FAKE_MONOTONIC=1"]
    return ["env", f"LD_PRELOAD={LIBRARY}", f"FAKETIME={time_}", *keep]


@dataclass
class Whole:
    """A split network that is up and replays."""

    testbed: SplitTestbed
    hosts: SplitHosts
    pretended: PretendedHosts
    states: list[tuple[float, str, LinkState]]

    def pid(self, host: str) -> int:
        """Return the number of the process that was started here for a host."""
        return self.hosts.hosts[host]._process.pid

    def reasons(self) -> list[str]:
        """Return the verdict's reasons, without starvation by other work on this machine."""
        return [reason for reason in self.testbed.host_reasons() if STARVED not in reason]


@contextmanager
def whole(
    text: str = NETWORK, before: Mapping[str, Sequence[str]] | None = None, names: Sequence[str] = ("north", "south")
) -> Iterator[Whole]:
    """Yield a network over these hosts. `before` maps a host to the words before its process's command."""
    token, states = token_bytes(16), []
    with ExitStack() as stack:
        pretended = stack.enter_context(PretendedHosts(names, DELAY_S))
        started = {}
        for name in names:
            enter = ["nsenter", f"--net={pretended.namespaces[name].path}", *(before or {}).get(name, ())]
            command = [*enter, sys.executable, "-m", "testbed.scaleout.split.host"]
            started[name] = HostProcess(name, command, pretended.addresses[name], token)
            stack.callback(started[name].close)
        underlay = pretended.namespaces[names[0]].path
        hosts = stack.enter_context(SplitHosts(started, pretended.addresses, token, underlay))
        given = {name: (pretended.addresses[name], Capacity()) for name in names}
        networks = [topology(text), topology(OTHER)]
        plan = plan_split(
            networks if text == NETWORK else networks[:1], {}, given, {}, hosts.underlay(), Path("x.yaml")
        )

        def observe(*state: Any) -> None:
            states.append(state)

        testbed = SplitTestbed(f"w{token_hex(4)}", plan, hosts, SETTINGS, observe, lambda _: nullcontext())
        stack.enter_context(closing(testbed))
        testbed.open()
        testbed.build()
        hosts.each("start")
        testbed.replay.start(networks[0].links.values())
        yield Whole(testbed, hosts, pretended, states)


def test_hosts_that_do_as_they_should_are_no_reason_and_leave_nothing() -> None:
    with whole() as up:
        name = up.testbed.name
        measured = up.testbed.measure()
        assert measured.keys() == topology().links.keys()
        backend = up.testbed.network.shaper.name
        for link, found in measured.items():
            assert found.rtt_error_s is not None
            assert abs(found.rtt_error_s) <= RTT_TOLERANCE_S[backend], link
            assert found.rate_error is None or abs(found.rate_error) <= RATE_TOLERANCE[backend] + found.rate_resolution
        time.sleep(SEEN_S)
        assert up.reasons() == []
        record = up.testbed.record()["hosts"]
        assert record["mtu"] == 1450
        assert DELAY_S - EARLY_S <= record["one_way_s"]["north south"] < 3e-3
        assert record["time_line_bound_s"] < 20e-3
        assert set(up.testbed.network.arrived_bytes()) == set(topology().links)
    assert not [one for one in label.networks() if one.startswith(name)]
    # The hosts have state folders of their own, whose processes `label.processes` leaves out.
    assert not [pid for pid in label._others() if (label._carried(pid, None) or "").startswith(name)]


def test_an_underlay_that_gets_slower_is_a_reason() -> None:
    with whole() as up:
        time.sleep(4.0)
        up.pretended.slow_down(DELAY_S + 20e-3)
        time.sleep(SEEN_S)
        (reason,) = up.reasons()
        assert "the hosts' network changed: north and south were 4" in reason


@needs_faketime
def test_a_clock_that_is_50_ms_off_is_a_reason() -> None:
    with whole(before={"south": faked("+0.05", monotonic=False)}) as up:
        time.sleep(SEEN_S)
        (reason,) = up.reasons()
        # The reason names the certain part: 50 ms less half of the shortest round trip.
        assert re.search(r"the clock of south is \+(4[0-9]|50) ms and more off", reason)


@needs_faketime
def test_a_clock_that_drifts_by_200_ppm_is_a_reason() -> None:
    with whole(before={"south": faked("+0 x1.0002", monotonic=True)}) as up:
        time.sleep(2 * SEEN_S)
        assert any("the clock of south drifts by +" in reason for reason in up.reasons())


def test_a_host_that_gets_no_processor_is_a_reason_by_its_name() -> None:
    """A process that is stopped for 0.6 s of each second behaves like that of a starved host."""
    with whole() as up:
        with stopping(up.pid("south"), 0.6):
            time.sleep(SEEN_S)
        late = [reason for reason in up.testbed.host_reasons() if "held up" in reason]
        assert any(reason.startswith(f"south: {STARVED}") for reason in late)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_host_that_is_lost_is_said_by_its_name(number: signal.Signals) -> None:
    with whole() as up:
        time.sleep(2.0)
        pid = up.pid("south")
        os.kill(pid, number)
        try:
            until(lambda: up.testbed.network.shaper.failure() is not None)
            assert "south" in str(up.testbed.network.shaper.failure())
            if number == signal.SIGKILL:
                with pytest.raises(HostLost) as caught:
                    up.testbed.network.take("lima", "quito", up=False)
                assert caught.value.host == "south"
        finally:
            if number == signal.SIGSTOP:
                os.kill(pid, signal.SIGKILL)
            until(lambda: up.hosts.hosts["south"]._process.poll() is not None)
            clean(None, f"{up.testbed.name}-south")


def test_what_is_asked_of_the_whole_is_done_by_its_hosts() -> None:
    with whole() as up:
        network, backend = up.testbed.network, up.testbed.network.shaper.name
        network.links_in_force.change(changed("lima->quito", "40ms"))
        network.links_in_force.change(changed("quito->lima", "40ms"))
        found = up.testbed.measure(["lima->quito", "quito->lima"])
        assert network.links_in_force.states()["lima->quito"].delay_s == 0.040
        assert all(abs(one.rtt_error_s or 0.0) <= RTT_TOLERANCE_S[backend] for one in found.values())
        with pytest.raises(ShapingError, match="lima->quito"):
            network.links_in_force.change(changed("lima->quito", "1ms"))
        assert network.links_in_force.states()["lima->quito"].delay_s == 0.040
        network.take("lima", "quito", up=False)
        assert network.links_in_force.down == {"lima->quito", "quito->lima"}
        network.take("lima", "quito", up=True)
        done = network.swap(topology(OTHER))
        assert set(done.added) == {"cuzco->quito", "quito->cuzco"}
        after = up.testbed.measure(done.added)
        assert after.keys() == set(done.added)
        assert all(abs(one.rtt_error_s or 0.0) <= RTT_TOLERANCE_S[backend] for one in after.values())


def test_three_hosts_have_a_site_each() -> None:
    with whole(names=("north", "south", "west")) as up:
        record = up.testbed.record()["hosts"]
        assert sorted(record["host_of"].values()) == ["north", "south", "west"]
        time.sleep(SEEN_S)
        assert up.reasons() == []


def test_a_delay_below_the_floor_is_refused() -> None:
    with (
        pytest.raises(SpecError, match="north"),
        whole(NETWORK.replace("delay: 10ms", "delay: 1ms").replace("delay: 5ms", "delay: 1ms")),
    ):
        pass


def test_a_network_whose_name_is_taken_is_refused_and_leaves_the_other() -> None:
    with whole() as up:
        again = SplitTestbed(
            up.testbed.name, up.testbed._plan, up.hosts, SETTINGS, lambda *_: None, lambda _: nullcontext()
        )
        with pytest.raises((FileExistsError, EmulationError)), closing(again):
            again.open()
        assert up.testbed.network.links_in_force.states()


def changed(link: str, delay: str) -> LinkChange:
    return LinkChange.model_validate({"link": link, "delay": delay})


@contextmanager
def stopping(pid: int, seconds: float) -> Iterator[None]:
    """Stop a process for `seconds` of each second while the context is entered."""
    over = threading.Event()

    def stop() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(seconds)
            os.kill(pid, signal.SIGCONT)
            over.wait(1 - seconds)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_the_processes_end_when_their_holder_is_killed() -> None:
    with whole() as up:
        pid = up.pid("south")
        process = up.hosts.hosts["south"]._process
        up.hosts.hosts["south"]._requests.close()
        until(lambda: not Path(f"/proc/{pid}").exists() or process.poll() is not None)


SSH = """#!/bin/sh
# Called like ssh: options, user@address, the command there. The address is that of a network namespace here.
while [ "${1#*@}" = "$1" ]; do shift; done
case "${1#*@}" in
HOSTS
esac
shift
exec nsenter --net="$netns" sh -c "$*"
"""


def test_by_the_command_line_a_delay_below_the_floor_is_refused_with_the_pair_and_the_floor(tmp_path: Path) -> None:
    """A script that enters the other host's namespace replaces SSH; the rest is `testbed run`."""
    with PretendedHosts(("north", "south"), DELAY_S) as pretended:
        where = [f"{pretended.addresses[name]}) netns={one.path};;" for name, one in pretended.namespaces.items()]
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "ssh").write_text(SSH.replace("HOSTS", "\n".join(where)))
        (tmp_path / "bin" / "ssh").chmod(0o755)
        hosts = {name: {"address": str(address), "folder": str(ROOT)} for name, address in pretended.addresses.items()}
        near = NETWORK.replace("delay: 10ms", "delay: 1ms").replace("delay: 5ms", "delay: 1ms")
        experiment = {"name": "near", "topology": "andes.yaml", "train": {"model": "cnn", "rounds": 2}}
        for name, text in (("hosts", {"hosts": hosts}), ("andes", yaml.safe_load(near)), ("near", experiment)):
            (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(text))
        enter = ["nsenter", f"--net={pretended.namespaces['north'].path}", sys.executable, "-m", "testbed"]
        done = subprocess.run(
            [*enter, "run", "near.yaml", "--hosts", "all", "--quiet"],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 2, done.stdout + done.stderr
        says = r"near\.yaml: links\.\S+\.delay: .*declares 1 ms one way, but north and south are ([\d.]+) ms apart"
        found = re.search(says, done.stderr)
        assert found and 1e3 * (DELAY_S - EARLY_S) <= float(found[1]) <= 1.5e3 * DELAY_S, done.stderr
        assert "write instead: a longer delay" in done.stderr


#: A server needs the user sshd, and /run/sshd; "$1" is its folder. Nobody else sees the mounts.
SERVER = """
mount --bind "$1/passwd" /etc/passwd
mount -t tmpfs none /run
mkdir /run/sshd
exec "$0" -D -e -f "$1/settings"
"""
#: Holds the forwarding of a socket until its input ends.
HOLDER = """
import sys
from pathlib import Path
from tests.cluster.split_checks import access
folder = Path(sys.argv[1])
with access(folder, int(sys.argv[2])).forwarding({folder / "there": Path("here")}, folder):
    print("ready", flush=True)
    sys.stdin.read()
"""


def access(folder: Path, port: int) -> Ssh:
    """Return the access to the SSH server of `ssh_server`."""
    host = Host.model_construct(address="127.0.0.1", user="root", port=port, folder="/")
    return Ssh("south", host, folder / "user", folder / "known_hosts")


@contextmanager
def ssh_server(settings: str = "") -> Iterator[tuple[Path, int]]:
    """Yield the folder and the port of an SSH server on loopback with further settings."""
    assert SSHD.exists(), f"there is no {SSHD}: ./setup.sh cluster unpacks it"
    with TemporaryDirectory(dir="/var/tmp") as made, socket.create_server(("127.0.0.1", 0)) as free:
        folder, port = Path(made), free.getsockname()[1]
        free.close()
        for name in ("user", "host"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
        users = Path("/etc/passwd").read_text().rstrip()
        (folder / "passwd").write_text(f"{users}\nsshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n")
        (folder / "settings").write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nPidFile none\nHostKey {folder / 'host'}\n"
            f"AuthorizedKeysFile {folder / 'user.pub'}\nUsePAM no\nStrictModes no\n{settings}\n"
        )
        with (folder / "log").open("w") as log:
            server = subprocess.Popen(["unshare", "--mount", "sh", "-c", SERVER, str(SSHD), made], stderr=log)
        try:
            until(lambda: "listening" in (folder / "log").read_text())
            yield folder, port
        finally:
            server.kill()
            server.wait()


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
        made.listen()
        made.settimeout(30.0)
        yield made


def clients(folder: Path) -> list[int]:
    """Return the processes whose command names a file in the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().startswith(b"ssh\0") and str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def test_a_server_forwards_a_socket_until_the_context_ends() -> None:
    with ssh_server() as (folder, port), listening(folder / "here") as here, socket.socket(socket.AF_UNIX) as worker:
        with access(folder, port).forwarding({folder / "there": Path("here")}, folder):
            worker.connect(str(folder / "there"))
            connection, _ = here.accept()
            with connection:
                worker.sendall(b"hello")
                assert connection.recv(5) == b"hello"
                connection.sendall(b"welcome")
                assert worker.recv(7) == b"welcome"
        assert worker.recv(1) == b""  # the end of the context ends open connections
        assert clients(folder) == []


@pytest.mark.parametrize("settings", ["AllowStreamLocalForwarding no", "AllowTcpForwarding no"])
def test_a_server_that_forwards_nothing_is_named_with_the_setting(settings: str) -> None:
    with ssh_server(settings) as (folder, port):
        with (
            pytest.raises(CannotRun, match=r"^south (?s:.*)AllowStreamLocalForwarding"),
            access(folder, port).forwarding({folder / "there": Path("here")}, folder),
        ):
            pass
        assert clients(folder) == []


def test_a_holder_that_is_killed_leaves_no_client_once_its_workers_have_ended() -> None:
    with ssh_server() as (folder, port), listening(folder / "here") as here:
        command, pipe = [sys.executable, "-c", HOLDER, str(folder), str(port)], subprocess.PIPE
        with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe) as holder:
            assert holder.stdout is not None and holder.stdout.readline() == b"ready\n"
            with socket.socket(socket.AF_UNIX) as worker:
                worker.connect(str(folder / "there"))
                connection, _ = here.accept()
                holder.kill()
                connection.close()
                assert worker.recv(1) == b""
        until(lambda: clients(folder) == [])
