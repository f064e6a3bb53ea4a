"""This machine's part in a cluster: its secrets, the filter on its ports, Ray's processes, and the connection to Ray.

    python -m testbed.scaleout.node start < CONFIGURATION        python -m testbed.scaleout.node stop

All files lie in /run/testbed-cluster, which only root reads and a reboot removes. Every Ray process carries a label, by
which `stop` finds the process. Ray writes process titles over the environment that holds the label, so each process is
also in a UTS namespace that carries the label's mark. Another Ray on this machine is not touched.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from testbed.atomic_file import write_text
from testbed.emulation.label import kill_processes, marked, processes
from testbed.emulation.network.share import TUNNEL_PORT
from testbed.emulation.process import ProcessIdentity, last_lines, stat_fields
from testbed.run.errors import CannotRun
from testbed.scaleout.split.probes import PROBE_PORT
from testbed.sockets import AUTHORITY, CERTIFICATE, KEY

FOLDER = Path("/run/testbed-cluster")
CONFIGURATION = FOLDER / "node.json"
TOKEN = "token"

#: The working folder of the run that a cluster started on this host; there is one run at a time.
SCRATCH = Path("/var/lib/testbed/cluster-run")

#: The label of Ray's processes, and the one of the runs that Ray starts.
LABEL, RUN_LABEL = "TESTBED_CLUSTER", "TESTBED_CLUSTER_RUN"

#: The range of Ray's ports and the port that measures capacity. It lies outside Linux's range of ephemeral ports.
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

#: The size of Ray's object store: a run's directory comes back through it, some 1 to 20 MB.
OBJECT_STORE_BYTES = 200_000_000

#: The Ray resource of which each host has one: a run takes a whole host.
RESOURCE = "testbed_host"

#: Ray gives its agents 15 s to start, which takes them 3 s of a processor: beside 20 busy processes on two cores they
#: were late each time. Ray must also answer health checks however busy a run makes its host. Runs themselves have the
#: usual niceness.
NICENESS = -15

#: A host that does not answer for a minute and a half is lost; a host that was cut off for half a minute is not.
HEALTH = {
    "health_check_period_ms": 5_000,
    "health_check_timeout_ms": 15_000,
    "health_check_failure_threshold": 6,
    "worker_register_timeout_seconds": 180,
    "memory_monitor_refresh_ms": 0,  # a run itself reports that it is short of memory
}

START_S = 120.0
#: The number of last lines of Ray's log that an error quotes.
QUOTED_LINES = 8
#: The time for runs to end, in seconds: a run removes its network and containers first.
RUNS_END_S = 60.0

CHAIN = "TESTBED-CLUSTER"
#: The kernel lists addresses of IPv6 here, if it has IPv6.
IPV6_ADDRESSES = Path("/proc/net/if_inet6")

NOT_INSTALLED = "Ray is not installed here; `sudo ./setup.sh scaleout` installs it"


@dataclass(frozen=True)
class ClusterNode:
    """A machine's configuration as a node of a cluster."""

    cluster: str
    address: str
    #: The head's address.
    head: str
    #: The host's name; None for the head, which makes no runs.
    name: str | None = None
    #: The addresses of all nodes, which may use this node's ports.
    hosts: Sequence[str] = ()
    #: Texts of secret files, by file name.
    secrets: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, text: str) -> ClusterNode:
        """Read a configuration from `dump`'s JSON."""
        return cls(**json.loads(text))

    def dump(self) -> str:
        """Return the configuration as JSON."""
        return json.dumps(asdict(self))


def environment() -> dict[str, str]:
    """Return the environment of Ray's processes here: authentication, TLS and health checks."""
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
    """Make this machine a node of a cluster.

    Raises:
        CannotRun: Ray does not start, and the attempt is undone; or the machine is a node already.
    """
    if CONFIGURATION.exists():
        raise CannotRun(f"this machine is a node of the cluster {read().cluster}; `testbed cluster down` ends that")
    FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        write_text(CONFIGURATION, replace(node, secrets={}).dump(), mode=0o600)
        for name, text in node.secrets.items():
            write_text(FOLDER / name, text, mode=0o600)
        _filter_ports(node.hosts)
        _start_ray(node)
    except BaseException:
        stop()
        raise


def stop() -> None:
    """End runs, then Ray, and remove the filter and the secrets. A second call does nothing."""
    end_runs()
    for process in _ray_processes():
        process.send(signal.SIGKILL)
    kill_processes(label=LABEL)
    _unfilter_ports()
    shutil.rmtree(FOLDER, ignore_errors=True)


def end_runs() -> None:
    """End the cluster's runs on this host, which remove all they made, and delete their working folder."""
    for pid in _runs():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + RUNS_END_S
    while _runs() and time.monotonic() < deadline:
        time.sleep(0.1)
    kill_processes(label=RUN_LABEL)
    shutil.rmtree(SCRATCH, ignore_errors=True)


def _runs() -> list[int]:
    """Return the ids of the processes of runs on this host, without the children, which each run ends itself."""
    networks = {pid for pid, _ in processes()}  # a run's children carry its network's label, too
    return [pid for pid, _ in processes(label=RUN_LABEL) if pid not in networks]


def _ray_processes() -> list[ProcessIdentity]:
    """Return Ray's labelled processes and their descendants, some of which write a title over the label."""
    pids = (int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdecimal())
    parents = {pid: int(fields[1]) for pid in pids if (fields := stat_fields(pid)) is not None}
    found = {pid for pid, _ in processes(label=LABEL)}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return [process for pid in sorted(found) if (process := ProcessIdentity.of(pid)) is not None]


def read() -> ClusterNode:
    """Return this machine's configuration. Raises CannotRun when it is in no cluster."""
    try:
        return ClusterNode.load(CONFIGURATION.read_text())
    except FileNotFoundError:
        raise CannotRun("no cluster is up here; `testbed cluster up HOSTS.yaml` starts one") from None


def _start_ray(node: ClusterNode) -> None:
    where = ["--head", f"--port={HEAD_PORT}"] if node.name is None else [f"--address={node.head}:{HEAD_PORT}"]
    resources = {} if node.name is None else {RESOURCE: 1, f"host:{node.name}": 1}
    ray = Path(sys.executable).with_name("ray")
    if not ray.exists():
        raise CannotRun(NOT_INSTALLED)
    command = ["nice", "-n", str(NICENESS - os.getpriority(os.PRIO_PROCESS, 0))]
    command += [str(ray), "start", *where, f"--node-ip-address={node.address}"]
    command += [f"--{name}={port}" for name, port in PORTS.items()]
    command += ["--num-cpus=0", f"--resources={json.dumps(resources)}", f"--object-store-memory={OBJECT_STORE_BYTES}"]
    command += [f"--temp-dir={FOLDER / 'ray'}", "--disable-usage-stats"]
    command += ["--include-dashboard=false"] if node.name is None else []
    command = marked(command, {LABEL: node.cluster})
    variables = {**os.environ, **environment(), LABEL: node.cluster}
    output = FOLDER / "ray.log"
    with output.open("wb") as file:
        try:
            done = subprocess.run(
                command,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=START_S,
            )
        except subprocess.TimeoutExpired as error:
            said = "\n".join(last_lines(output, QUOTED_LINES))
            raise CannotRun(f"Ray did not start within {START_S:g} s:\n{said}") from error
    if done.returncode:
        raise CannotRun("\n".join(["Ray did not start:", *last_lines(output, QUOTED_LINES)]))


def _filter_ports(hosts: Sequence[str]) -> None:
    """Drop what machines outside the cluster send to Ray, which listens on every address, and to the tunnels.

    The hosts' addresses are IPv4, so this machine alone reaches the ports over IPv6.
    """
    _unfilter_ports()
    for program, sources in (("iptables", hosts), ("ip6tables", ())):
        if program == "ip6tables" and not IPV6_ADDRESSES.exists():
            continue
        _change_filter(program, "-N", CHAIN)
        for rule in (["-i", "lo"], *(["-s", host] for host in sources)):
            _change_filter(program, "-A", CHAIN, *rule, "-j", "ACCEPT")
        _change_filter(program, "-A", CHAIN, "-j", "DROP")
        for jump in _JUMPS:
            _change_filter(program, "-I", "INPUT", *jump)


_JUMPS = (
    ("-p", "tcp", "--dport", f"{FIRST_PORT}:{LAST_PORT}", "-j", CHAIN),
    ("-p", "udp", "--dport", f"{TUNNEL_PORT}:{PROBE_PORT}", "-j", CHAIN),
)


def _unfilter_ports() -> None:
    for program in ("iptables", "ip6tables"):
        for rule in (*(("-D", "INPUT", *jump) for jump in _JUMPS), ("-F", CHAIN), ("-X", CHAIN)):
            with suppress(FileNotFoundError):  # without the program there is no filter of ours
                subprocess.run([program, "-w", *rule], capture_output=True)


def _change_filter(program: str, *words: str) -> None:
    try:
        done = subprocess.run([program, "-w", *words], capture_output=True, text=True)
    except FileNotFoundError:
        raise CannotRun(f"`{program}` is not installed here, or not on the PATH; apt-get install iptables") from None
    if done.returncode:
        raise CannotRun(f"the cluster's ports can't be closed to other machines: {program}: {done.stderr.strip()}")


@contextmanager
def connected() -> Iterator[Any]:
    """Connect to the cluster that is up here; yields Ray's module.

    Raises:
        CannotRun: No cluster is up, its head does not answer, or Ray is not installed.
    """
    node = read()
    os.environ.update(environment())  # Ray reads its settings from the environment alone, as it is imported
    try:
        import ray
    except ImportError as error:
        raise CannotRun(NOT_INSTALLED) from error
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=f"{node.head}:{HEAD_PORT}",
            _node_ip_address=node.address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError) as error:
        remedy = "take the cluster down with `testbed cluster down`, and bring it up again"
        raise CannotRun(f"the cluster's head at {node.head} does not answer: {error}; {remedy}") from error
    signal.signal(signal.SIGTERM, terminated)  # Ray replaced the handler
    try:
        yield ray
    finally:
        ray.shutdown()


def hosts_alive(ray: Any) -> dict[str, str]:
    """Return the address of each host that Ray considers alive, by the host's name."""
    names: dict[str, str] = {}
    for node in ray.nodes():
        if node["Alive"]:
            hosts = [each.removeprefix("host:") for each in node["Resources"] if each.startswith("host:")]
            names |= dict.fromkeys(hosts, node["NodeManagerAddress"])
    return names


def main(words: Sequence[str]) -> int:
    """Start by the configuration on standard input, or stop. Returns the exit code, 3 where this machine can't.

    `stop HEAD` leaves the node of a cluster with another head alone.
    """
    try:
        if words == ["start"]:
            start(ClusterNode.load(sys.stdin.read()))
            return 0
        if words[1:] and CONFIGURATION.exists() and (node := read()).head != words[1]:
            raise CannotRun(f"this machine is a node of another cluster by now, {node.cluster}, and was left alone")
        stop()
    except CannotRun as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
