"""A cluster of three pretended hosts, from `up` to `down`: `make cluster-test`, some ten minutes.

The hosts share this machine's processors, so verdicts here say nothing about separate machines.
"""

from __future__ import annotations

import csv
import io
import json
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.emulation.network.namespace import inside
from testbed.scaleout.node import FIRST_PORT, FOLDER, HEAD_PORT, LAST_PORT, SCRATCH
from tests.cluster.pretended import DELAY_S, EARLY_S, PretendedCluster, PretendedHost
from tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]

TESTBED = (sys.executable, "-m", "testbed")
OWNER = 12345
ROUNDS = 60
CUT_OFF_S = 30.0

TOPOLOGY = {
    "name": "pair",
    "sites": {"quito": {"workers": 1}, "lima": {"workers": 1}},
    "links": [{"between": ["quito", "lima"], "rate": "40mbit", "delay": "5ms"}],
}
#: Some 20 s of training: a round is a step of 100 ms, and twice the model over 40 Mbit/s, which takes another 100 ms.
EXPERIMENT: dict[str, Any] = {
    "name": "pair",
    "topology": "topology.yaml",
    "train": {"model": "cnn", "batch": 16, "rounds": ROUNDS, "evaluate_every": 30},
    "compute": {"step_time": "100ms"},
    "sync": {"policy": "mst"},
}
SWEEP = {
    "name": "twelve",
    "experiment": "experiment.yaml",
    "axes": {"scale": [1, 0.5]},
    "seeds": [1, 2, 3],
    "repeats": 2,
}


@pytest.fixture(scope="module")
def pretended() -> Iterator[PretendedCluster]:
    with PretendedCluster() as made:
        yield made


@pytest.fixture(scope="module")
def folder(pretended: PretendedCluster) -> Path:
    """Return the folder from which commands are called on the head, where it is /tmp/sweep."""
    folder = pretended.head.state / "tmp" / "sweep"
    folder.mkdir()
    for name, value in (("topology", TOPOLOGY), ("experiment", EXPERIMENT), ("sweep", SWEEP)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(value))
    return folder


def on_head(pretended: PretendedCluster, *words: str) -> list[str]:
    """Return a command as a user of the head calls it, with sudo, in the sweep's folder."""
    return pretended.head.command(
        ["env", "--chdir=/tmp/sweep", f"SUDO_UID={OWNER}", f"SUDO_GID={OWNER}", *TESTBED, *words]
    )


def test_a_host_whose_key_is_not_known_is_refused(pretended: PretendedCluster) -> None:
    known = pretended.folder / "known_hosts"
    text = known.read_text()
    known.write_text("")
    said = pretended.head.run(*TESTBED, "cluster", "up", str(pretended.file), check=False)
    known.write_text(text)
    assert "ssh-keyscan" in said
    assert not pretended.head.run("ls", str(FOLDER), check=False).startswith("node.json")


def test_up_starts_ray_on_every_host(pretended: PretendedCluster) -> None:
    said = pretended.head.run(*TESTBED, "cluster", "up", str(pretended.file), timeout=600)
    assert "3 hosts are up" in said


def test_a_second_up_is_refused(pretended: PretendedCluster) -> None:
    assert "is up" in pretended.head.run(*TESTBED, "cluster", "up", str(pretended.file), check=False)


def test_the_doctor_says_what_hosts_are_and_what_lies_between_them(pretended: PretendedCluster) -> None:
    found = json.loads(pretended.head.run(*TESTBED, "cluster", "doctor", "--json").splitlines()[-1])
    assert [each["host"] for each in found["hosts"]] == ["a", "b", "c"]
    for host in found["hosts"]:
        assert host["backend"]
        assert abs(host["clock_offset_s"]) <= host["clock_bound_s"]  # the hosts share one clock
    assert len(found["pairs"]) == 3
    for pair in found["pairs"]:
        assert 2 * (DELAY_S - EARLY_S) <= pair["round_trip_s"] < 2 * DELAY_S + 2e-3
        assert pair["mtu"] == 1500
        assert pair["capacity_bps"] > 50e6


def listening(host: PretendedHost) -> list[int]:
    """Return the ports that every machine could reach without the filter."""
    lines = host.run("ss", "--no-header", "--tcp", "--listening", "--numeric").splitlines()
    ends = [line.split()[3].rpartition(":") for line in lines]
    return [int(port) for address, _, port in ends if not address.startswith(("127.", "[::1]")) and int(port) != 22]


def reaches(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def test_a_machine_that_is_no_host_reaches_no_port(pretended: PretendedCluster) -> None:
    with closing(pretended.stranger()) as stranger:
        for host in (pretended.head, *pretended.hosts.values()):
            ports = listening(host)
            assert len(ports) >= 3
            assert all(FIRST_PORT <= port <= LAST_PORT for port in ports), ports
            open_ports = inside(stranger.path, lambda h=host, p=ports: [each for each in p if reaches(h.address, each)])
            assert open_ports == []
        assert inside(stranger.path, lambda: reaches(pretended.hosts["a"].address, 22))  # it is on the network


CALL = """
import os, sys, ray
try:
    ray.init(address=sys.argv[1], _node_ip_address=sys.argv[2])
except BaseException as error:
    print("refused", type(error).__name__)
else:
    print("let in")
"""


@pytest.mark.parametrize("settings", [(), ("RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN=00")], ids=["none", "wrong"])
def test_a_connection_without_the_token_is_refused(pretended: PretendedCluster, settings: tuple[str, ...]) -> None:
    """A caller without the token is refused even on a host, behind the filter."""
    host, head = pretended.hosts["a"], pretended.head
    command = [
        "env",
        *settings,
        "timeout",
        "100",
        sys.executable,
        "-c",
        CALL,
        f"{head.address}:{HEAD_PORT}",
        host.address,
    ]
    assert "let in" not in host.run(*command, check=False)


def test_twelve_runs_come_back_though_one_host_is_killed_and_one_cut_off(
    pretended: PretendedCluster, folder: Path
) -> None:
    command = on_head(pretended, "sweep", "sweep.yaml", "--on", "ray")
    sweep = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    record = folder / "runs" / "sweeps" / "twelve" / "runs.jsonl"
    until(lambda: sweep.poll() is not None or lines(record) >= 3)
    assert sweep.poll() is None, sweep.stdout and sweep.stdout.read()
    # While a run goes on: between two runs the host has nothing to lose.
    until(lambda: any("testbed.controller" in line for line in own_processes(pretended.hosts["c"])))
    pretended.hosts["c"].kill()
    pretended.cut("b")
    time.sleep(CUT_OFF_S)
    pretended.join("b")
    said, _ = sweep.communicate(timeout=1000)
    print(said)
    assert sweep.returncode == 0, said
    assert "host c (10.99.0.4) is lost; " in said or "host c (10.99.0.4) broke off: " in said
    assert "; its run is made again: " in said
    with (folder / "runs" / "sweeps" / "twelve" / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    keys = [json.loads(line)["key"] for line in record.read_text().splitlines()]
    assert max(Counter(keys).values()) == 1
    assert len(set(keys)) == 12
    for row in rows:
        directory = folder / "runs" / row["run"]
        assert json.loads((directory / "manifest.json").read_text())["made_on"] in pretended.hosts
        assert json.loads((directory / "summary.json").read_text())["training"]["rounds"] == ROUNDS
        assert (directory / "report.html").exists()
        assert {each.stat().st_uid for each in directory.rglob("*")} == {OWNER}
    assert not list((folder / "runs").glob(".*incoming"))
    print("verdicts:", Counter(row["verdict"] for row in rows))
    for row in rows:
        print(row["scale"], row["seed"], row["repeat"], row["seconds_per_round_p50"], row["verdict"])


def lines(file: Path) -> int:
    return file.read_text().count("\n") if file.exists() else 0


def test_down_leaves_nothing_on_any_host(pretended: PretendedCluster) -> None:
    said = pretended.head.run(*TESTBED, "cluster", "down", check=False, timeout=300)
    assert "2 of 3 hosts are left as they were" in said
    assert "c (10.99.0.4" in said  # the host has no power
    for host in (pretended.head, *(each for each in pretended.hosts.values() if each.is_up)):
        assert not any("ray" in line or "testbed" in line for line in own_processes(host))
        assert all("TESTBED" not in host.run(program, "-S") for program in ("iptables", "ip6tables"))
        assert "cannot access" in host.run("ls", str(FOLDER), check=False)
        assert "cannot access" in host.run("ls", str(SCRATCH), check=False)
        if host is not pretended.head:
            assert host.run("docker", "ps", "--all", "--quiet") == ""
            assert host.cgroups == []
            assert host.run("ls", "/run/testbed/networks", check=False).strip() in ("", LEFT)


LEFT = "ls: cannot access '/run/testbed/networks': No such file or directory"


def own_processes(host: PretendedHost) -> list[str]:
    """Return the commands of the host's processes, without those of the pretended machine itself."""
    said = host.run("ps", "-e", "--no-headers", "-o", "args")
    made = ("host.sh", "sshd", "sleep infinity", "dockerd", "containerd", "ps -e")
    return [line for line in io.StringIO(said) if not any(word in line for word in made)]
