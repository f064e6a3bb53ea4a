"""A machine's part of a cluster: secrets, a filter for its ports, and Ray's processes.

    python -m testbed.scaleout.node start < CONFIGURATION        python -m testbed.scaleout.node stop

All lies in /run/testbed-cluster, which a reboot takes away, for root alone. Every process carries a label, by which
`stop` finds it, and is in a UTS namespace with the label's mark, since Ray writes titles over environments: another Ray
on this machine is not touched.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from testbed.atomic_file import write_text
from testbed.emulation.label import kill_processes, marked, processes
from testbed.emulation.network.share import TUNNEL_PORT
from testbed.emulation.process import ProcessIdentity
from testbed.run.errors import CannotRun
from testbed.scaleout.underlay_probe import PROBE_PORT
from testbed.sockets import AUTHORITY, CERTIFICATE, KEY

FOLDER = Path("/run/testbed-cluster")
CONFIGURATION = FOLDER / "node.json"
TOKEN = "token"

#: Where runs that were asked for from elsewhere are made, one at a time.
SCRATCH = Path("/var/lib/testbed/cluster-run")

#: What Ray's processes carry, and what the runs that it starts carry instead.
LABEL, RUN_LABEL = "TESTBED_CLUSTER", "TESTBED_CLUSTER_RUN"

#: All of Ray's ports, and those on which pairs of hosts are measured. Linux gives none of them to others by itself.
FIRST_PORT, LAST_PORT = 14700, 14788
HEAD_PORT, MEASURE_PORT = 14700, 14750
PORTS = {
    "node-manager-port": 14701,
    "object-manager-port": 14702,
    "runtime-env-agent-port": 14703,
    "metrics-export-port": 14704,
    "dashboard-agent-grpc-port": 14705,
    "dashboard-agent-listen-port": 14706,
    "min-worker-port": 14710,
    "max-worker-port": 14749,
}
MONITOR_PORT = 14707

#: What comes back of a run goes through here: some 1 to 20 MB.
OBJECT_STORE_BYTES = 200_000_000

#: One host, to a run that takes all of it.
RESOURCE = "testbed_host"

#: Ray gives its agents 15 s to start, which takes them 3 s of a processor: beside 20 busy processes on two cores they
#: were late each time. Its answers also say that a host is there, however busy a run makes it. Runs themselves have
#: the usual niceness.
NICENESS = -15

#: A host that does not answer for a minute and a half is lost; one that was cut off for half a minute is not.
HEALTH = {
    "health_check_period_ms": 5_000,
    "health_check_timeout_ms": 15_000,
    "health_check_failure_threshold": 6,
    "worker_register_timeout_seconds": 180,
    "memory_monitor_refresh_ms": 0,  # what is short of memory is the run's to say
}

START_S = 120.0
#: A run takes its network and containers away first.
RUNS_END_S = 60.0

CHAIN = "TESTBED-CLUSTER"


@dataclass(frozen=True)
class ClusterNode:
    """What a machine needs to be part of a cluster. Without a `name` it is the head, which makes no runs."""

    cluster: str
    address: str
    head: str
    name: str | None = None
    hosts: Sequence[str] = ()
    secrets: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, text: str) -> ClusterNode:
        """As `dump` wrote it."""
        return cls(**json.loads(text))

    def dump(self) -> str:
        """As text."""
        return json.dumps(asdict(self))


def environment() -> dict[str, str]:
    """What Ray is told on this machine: whom it lets in, and what it shows others."""
    settings = {f"RAY_{name}": str(value) for name, value in HEALTH.items()}
    return settings | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(FOLDER / TOKEN),
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(FOLDER / CERTIFICATE),
        "RAY_TLS_SERVER_KEY": str(FOLDER / KEY),
        "RAY_TLS_CA_CERT": str(FOLDER / AUTHORITY),
        "RAY_USAGE_STATS_ENABLED": "0",
        "AUTOSCALER_METRIC_PORT": str(MONITOR_PORT),
    }


def start(node: ClusterNode) -> None:
    """Become part of the cluster. CannotRun when Ray does not start; what was begun is taken away then."""
    if CONFIGURATION.exists():
        raise CannotRun(f"this machine is part of the cluster {read().cluster}; `testbed cluster down` ends that")
    FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        write_text(CONFIGURATION, ClusterNode(**{**asdict(node), "secrets": {}}).dump(), mode=0o600)
        for name, text in node.secrets.items():
            write_text(FOLDER / name, text, mode=0o600)
        _filter_ports(node.hosts)
        _start_ray(node)
    except BaseException:
        stop()
        raise


def stop() -> None:
    """Be no part of any cluster: runs end, then Ray, then the filter and the secrets go. A second time does nothing."""
    end_runs()
    for process in _ray_processes():
        process.send(signal.SIGKILL)
    kill_processes(label=LABEL)
    _unfilter_ports()
    shutil.rmtree(FOLDER, ignore_errors=True)


def end_runs() -> None:
    """End the runs that go on here, which take away all they made, and remove what they had from elsewhere."""
    for pid in _runs():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + RUNS_END_S
    while _runs() and time.monotonic() < deadline:
        time.sleep(0.1)
    kill_processes(label=RUN_LABEL)
    shutil.rmtree(SCRATCH, ignore_errors=True)


def _runs() -> list[int]:
    """The runs themselves: what they start carries a network's label beside that of the cluster, and they end it."""
    networks = {pid for pid, _ in processes()}
    return [pid for pid, _ in processes(label=RUN_LABEL) if pid not in networks]


def _ray_processes() -> list[ProcessIdentity]:
    """Ray's processes here: those that carry the label, and what they started. Some of those write a title over it."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found = {pid for pid, _ in processes(label=LABEL)}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return [process for pid in sorted(found) if (process := ProcessIdentity.of(pid)) is not None]


def read() -> ClusterNode:
    """What this machine is part of. CannotRun when it is part of no cluster."""
    try:
        return ClusterNode.load(CONFIGURATION.read_text())
    except FileNotFoundError:
        raise CannotRun("no cluster is up here; `testbed cluster up HOSTS.yaml` starts one") from None


def _start_ray(node: ClusterNode) -> None:
    where = ["--head", f"--port={HEAD_PORT}"] if node.name is None else [f"--address={node.head}:{HEAD_PORT}"]
    resources = {} if node.name is None else {RESOURCE: 1, f"host:{node.name}": 1}
    command = ["nice", "-n", str(NICENESS - os.getpriority(os.PRIO_PROCESS, 0))]
    command += [str(Path(sys.executable).with_name("ray")), "start", *where, f"--node-ip-address={node.address}"]
    command += [f"--{name}={port}" for name, port in PORTS.items()]
    command += ["--num-cpus=0", f"--resources={json.dumps(resources)}", f"--object-store-memory={OBJECT_STORE_BYTES}"]
    command += [f"--temp-dir={FOLDER / 'ray'}", "--disable-usage-stats"]
    command += ["--include-dashboard=false"] if node.name is None else []
    command = marked(command, {LABEL: node.cluster})
    told = {**os.environ, **environment(), LABEL: node.cluster}
    output = FOLDER / "ray.log"
    with output.open("wb") as file:
        try:
            done = subprocess.run(
                marked(command, {LABEL: node.cluster}),
                env=told,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=START_S,
            )
        except FileNotFoundError as error:
            raise CannotRun("Ray is not installed here; `./setup.sh scaleout` installs it") from error
        except subprocess.TimeoutExpired as error:
            raise CannotRun(f"Ray did not start within {START_S:g} s:\n{_end(output)}") from error
    if done.returncode:
        raise CannotRun(f"Ray did not start:\n{_end(output)}")


def _end(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-8:])


def _filter_ports(hosts: Sequence[str]) -> None:
    """Ray listens on every address, and tunnels take what comes: what no host of the cluster sent is dropped before."""
    _unfilter_ports()
    _iptables("-N", CHAIN)
    for rule in (["-i", "lo"], *(["-s", host] for host in hosts)):
        _iptables("-A", CHAIN, *rule, "-j", "ACCEPT")
    _iptables("-A", CHAIN, "-j", "DROP")
    for jump in _JUMPS:
        _iptables("-I", "INPUT", *jump)


_JUMPS = (
    ("-p", "tcp", "--dport", f"{FIRST_PORT}:{LAST_PORT}", "-j", CHAIN),
    ("-p", "udp", "--dport", f"{TUNNEL_PORT}:{PROBE_PORT}", "-j", CHAIN),
)


def _unfilter_ports() -> None:
    for rule in (*(("-D", "INPUT", *jump) for jump in _JUMPS), ("-F", CHAIN), ("-X", CHAIN)):
        subprocess.run(["iptables", "-w", *rule], capture_output=True)


def _iptables(*words: str) -> None:
    done = subprocess.run(["iptables", "-w", *words], capture_output=True, text=True)
    if done.returncode:
        raise CannotRun(f"the cluster's ports can't be closed to others: iptables: {done.stderr.strip()}")


def main(words: Sequence[str]) -> int:
    """Start by the configuration on the input, or stop; 3 with the reason where this machine can't."""
    try:
        if words == ["start"]:
            start(ClusterNode.load(sys.stdin.read()))
        else:
            stop()
    except CannotRun as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
