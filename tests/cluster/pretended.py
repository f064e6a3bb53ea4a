"""A pretended cluster: machines made of this one's network, mount, process and name namespaces.

    a, b, c …   each with an engine, an sshd, a folder for all it writes  ─┐
    head        where commands are called: no engine                      ─┴─ a bridge, with a delay towards each

`python -m tests.cluster.pretended [NAMES…]` holds such machines until its input ends, and prints how to enter them.
They share this machine's processors, memory, kernel and clock. `ip netns exec` would hide their cgroups: enter with
`PretendedHost.command`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from testbed.emulation.containers import engine
from testbed.emulation.containers.image import ensure_worker_image
from testbed.emulation.host.budget import KEPT
from testbed.emulation.network.namespace import Namespace
from testbed.emulation.shaping import Port, open_shaper
from testbed.link import LinkState
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SSHD = ROOT / "build" / "sshd" / "usr" / "sbin" / "sshd"
CGROUPS = Path("/sys/fs/cgroup")

#: The one-way delay in seconds, and a rate that limits nothing: the userspace shaper needs one above what this machine
#: carries.
DELAY_S = 2e-3
NO_RATE_BPS = 40e9
#: By how much the shaping core may let a packet go before its delay is over: GRAIN in core/main.c, in seconds.
EARLY_S = 250e-6
NETWORK = "10.99.0"
INTERFACE = "underlay0"
HEAD = "head"


@dataclass
class PretendedHost:
    """A pretended machine."""

    name: str
    address: str
    #: The machine's first process.
    pid: int
    #: The folder for all that the machine writes.
    state: Path
    _holder: subprocess.Popen[str] = field(repr=False)

    def command(self, words: Sequence[str]) -> list[str]:
        """Return a command that runs these words on the machine, in the checkout's folder."""
        enter = ["nsenter", f"--target={self.pid}", "--net", "--mount", "--pid", "--uts"]
        return [*enter, "env", f"--chdir={ROOT}", *words]

    def run(self, *words: str, check: bool = True, timeout: float = 300.0) -> str:
        """Run a program on the machine and return its output and errors. Raises AssertionError when it fails."""
        done = subprocess.run(
            self.command(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        assert not check or done.returncode == 0, f"{self.name}: {words} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def popen(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start a program on the machine."""
        return subprocess.Popen(self.command(words), text=True, **options)

    def kill(self) -> None:
        """Cut the machine's power: all its processes end at once, and its interfaces are gone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._holder.wait()

    @property
    def is_up(self) -> bool:
        """True while the machine has power."""
        return self._holder.poll() is None

    @property
    def cgroups(self) -> list[Path]:
        """The control groups of the engine's containers, with processes or without."""
        return [each for each in CGROUPS.glob(f"*/{cgroup(self.state)}/*") if each.is_dir()]


def cgroup(state: Path) -> str:
    """Return the control group in which a machine's engine makes those of containers."""
    return f"testbed-{state.parent.name}-{state.name}"


class PretendedCluster:
    """A head and hosts of these names while the context is entered; nothing is left of them on exit."""

    def __init__(self, names: Sequence[str] = ("a", "b", "c")) -> None:
        self._names = names
        self._stack = ExitStack()
        self.hosts: dict[str, PretendedHost] = {}

    def __enter__(self) -> PretendedCluster:
        with ExitStack() as stack:
            self.folder = Path(tempfile.mkdtemp(prefix="pretended-", dir="/var/tmp"))
            stack.callback(self._remove)
            self._switch = Namespace()
            stack.callback(self._switch.close)
            self._in_switch("ip", "link", "add", "lan", "type", "bridge")
            self._in_switch("ip", "link", "set", "lan", "up")
            self._make_keys()
            for number, name in enumerate([HEAD, *self._names], 1):
                self._add(name, f"{NETWORK}.{number}", stack)
            self.head = self.hosts.pop(HEAD)
            late = LinkState(NO_RATE_BPS, DELAY_S)
            shaper = stack.enter_context(open_shaper())
            shaper.attach({self._port(host): late for host in (self.head, *self.hosts.values())})
            self._start_engines()
            for host in self.hosts.values():
                self._start_sshd(host)
            self.file = self._write_file()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cut(self, name: str) -> None:
        """Pull a host's cable."""
        self._in_switch("ip", "link", "set", f"to-{name}", "down")

    def join(self, name: str) -> None:
        """Plug a host's cable in again."""
        self._in_switch("ip", "link", "set", f"to-{name}", "up")

    def stranger(self) -> Namespace:
        """Return a machine on the same network that is no host; the caller closes it."""
        namespace = Namespace()
        self._plug("stranger", namespace.pid, f"{NETWORK}.200")
        return namespace

    def _add(self, name: str, address: str, stack: ExitStack) -> None:
        state = self.folder / name
        state.mkdir()
        passwd = Path("/etc/passwd").read_text()
        (state / "passwd").write_text(f"{passwd.rstrip()}\nsshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n")
        # Whatever ends this process ends the machine.
        command = ["setpriv", "--pdeathsig=KILL", "unshare", "--net", "--mount", "--pid", "--uts", "--fork"]
        command += ["--kill-child", "--mount-proc", "bash", str(ROOT / "tests/cluster/host.sh"), str(state), str(ROOT)]
        holder = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        stack.callback(self._end, holder, state)
        assert holder.stdout is not None
        said = holder.stdout.readline()
        assert said == "ready\n", f"the host {name} did not start: {said}"
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        host = self.hosts[name] = PretendedHost(name, address, int(children[0]), state, holder)
        host.run("hostname", name)
        self._plug(name, host.pid, address)

    def _plug(self, name: str, pid: int, address: str) -> None:
        port = f"to-{name}"
        self._in_switch("ip", "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", str(pid))
        self._in_switch("ip", "link", "set", port, "master", "lan", "up")
        for words in (["link", "set", "lo", "up"], ["addr", "add", f"{address}/24", "dev", INTERFACE],
                      ["link", "set", INTERFACE, "up"]):  # fmt: skip
            subprocess.run(["nsenter", f"--target={pid}", "--net", "ip", *words], check=True)

    def _in_switch(self, *words: str) -> None:
        subprocess.run(["nsenter", f"--net={self._switch.path}", *words], check=True)

    def _port(self, host: PretendedHost) -> Port:
        return Port(host.name, self._switch.path, f"to-{host.name}", bridge="lan", address=host.address)

    def _make_keys(self) -> None:
        for name in ("user", "host"):
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(self.folder / name)]
            subprocess.run(make, check=True)

    def _start_engines(self) -> None:
        """Start an engine on each host, with this checkout's image, which can't be built without a network."""
        archive = self.folder / "image.tar"
        if KEPT.exists():  # the hosts are this machine, so its budget is theirs
            for host in self.hosts.values():
                shutil.copy(KEPT, host.state / "lib")
        subprocess.run(["docker", "save", f"--output={archive}", ensure_worker_image(engine.connect())], check=True)
        for host in self.hosts.values():
            (host.state / "etc" / "daemon.json").write_text(f'{{"cgroup-parent": "/{cgroup(host.state)}"}}')
            host.run(sys.executable, "-m", "testbed.emulation.containers.engine")
        loads = [host.popen("docker", "load", "--quiet", "--input", str(archive), stdout=subprocess.DEVNULL)
                 for host in self.hosts.values()]  # fmt: skip
        assert [load.wait() for load in loads] == [0] * len(loads)
        archive.unlink()

    def _start_sshd(self, host: PretendedHost) -> None:
        assert SSHD.exists(), f"there is no {SSHD}: ./setup.sh cluster unpacks it"
        settings = {
            "ListenAddress": host.address,
            "HostKey": self.folder / "host",
            "AuthorizedKeysFile": self.folder / "user.pub",
            "PidFile": "/run/sshd.pid",
            "UsePAM": "no",
            "StrictModes": "no",
            "PasswordAuthentication": "no",
        }
        file = host.state / "sshd_config"
        file.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        host.run(str(SSHD), "-f", str(file))

    def _write_file(self) -> Path:
        hosts: Mapping[str, Any] = {
            host.name: {"address": host.address, "key": str(self.folder / "user"), "folder": str(ROOT)}
            for host in self.hosts.values()
        }
        key = (self.folder / "host.pub").read_text()
        (self.folder / "known_hosts").write_text("".join(f"{host['address']} {key}" for host in hosts.values()))
        file = self.folder / "hosts.yaml"
        file.write_text(yaml.safe_dump({"name": "pretended", "known_hosts": "known_hosts", "hosts": dict(hosts)}))
        return file

    def _end(self, holder: subprocess.Popen[str], state: Path) -> None:
        """End a machine, and remove its control groups."""
        holder.kill()  # its child goes with it
        holder.wait()
        for parent in CGROUPS.glob(f"*/{cgroup(state)}"):
            for group in [*sorted(parent.rglob("*/"), reverse=True), parent]:
                until(lambda group=group: not _has_processes(group))
                with suppress(FileNotFoundError):
                    group.rmdir()

    def _remove(self) -> None:
        until(lambda: not _mounted(self.folder))
        shutil.rmtree(self.folder)


def _has_processes(group: Path) -> bool:
    with suppress(OSError):
        return bool((group / "cgroup.procs").read_text())
    return False


def _mounted(folder: Path) -> bool:
    return str(folder) in Path("/proc/mounts").read_text()


def main() -> None:
    """Hold the machines until the input ends or a signal comes."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with PretendedCluster(sys.argv[1:] or ("a", "b", "c")) as pretended:
        for host in (pretended.head, *pretended.hosts.values()):
            print(host.name, host.address, *host.command(["bash"]))
        print(pretended.file, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
