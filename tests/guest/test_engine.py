"""Containers on a kernel with netem and Open vSwitch: a short training run, and the rights of `--privileged`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from math import nan
from pathlib import Path

import docker
import pytest

from testbed.emulation.containers.engine import ensure_engine
from testbed.emulation.containers.image import ensure_worker_image
from testbed.emulation.host import budget
from testbed.telemetry.store import write_json
from tests.run.running import NOTHING, Running

pytestmark = [pytest.mark.guest, pytest.mark.timeout(400)]

TOPOLOGY = """
name: two-sites
sites: {paris: {workers: 1}, tokyo: {workers: 1}}
links: [{between: [paris, tokyo], rate: 40mbit, delay: 10ms}]
"""
DELAY_MS = 10.0

#: Without the wide registers, on one core, under a kernel whose system calls are slow, a step takes long.
EXPERIMENT = """
name: guest
topology: two-sites.yaml
train: {model: cnn, batch: 8, rounds: 4, evaluate_every: 4}
compute: {step_time: 1s}
sync: {policy: mst}
controller: {hold: true}
backend: netem
"""

#: The control groups as a container sees them: its first process is in the group that is the root of its namespace. An
#: engine's containers get groups with limits in it.
NESTED = """
set -e
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/container
echo $$ >/sys/fs/cgroup/container/cgroup.procs
exec unshare --cgroup --mount sh -ec '
umount /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo +memory 2>/dev/null >/sys/fs/cgroup/cgroup.subtree_control && echo there was room
"$0" -c "from testbed.emulation.containers import engine; engine.leave_root_group()"
mkdir /sys/fs/cgroup/worker
echo 67108864 >/sys/fs/cgroup/worker/memory.max
echo $$ >/sys/fs/cgroup/worker/cgroup.procs
cat /proc/self/cgroup' "$0"
"""

#: Two namespaces of its own, and 20 ms each way between them.
PATH = """
set -e
mount -t proc proc /proc
ip link add left type veth peer name right
unshare --net sleep 600 & other=$!
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
ip link set right netns $other
ip addr add 10.9.0.1/24 dev left
ip link set left up
nsenter --target $other --net ip addr add 10.9.0.2/24 dev right
nsenter --target $other --net ip link set right up
tc qdisc add dev left root netem delay 20ms
nsenter --target $other --net tc qdisc add dev right root netem delay 20ms
ping -nq -c 20 -i 0.05 10.9.0.2
kill $other
"""


@pytest.fixture(scope="module")
def client() -> docker.DockerClient:
    return ensure_engine(lambda _: None)


@pytest.fixture
def known_host() -> Iterator[None]:
    """Write a budget for this host: a run that has to measure it first takes the guest 15 s more."""
    if budget.host_budget("netem") is not None:
        yield
        return
    said = budget.Budget(budget._key("netem"), 1e9, {"cnn": 0.01}, os.cpu_count() or 1, time.time(), 0.0)
    write_json(budget.KEPT, asdict(said))
    yield
    budget.KEPT.unlink(missing_ok=True)  # a run that finds it wrong removes it


@pytest.fixture
def experiment(tmp_path: Path, known_host: None) -> Path:
    (tmp_path / "two-sites.yaml").write_text(TOPOLOGY)
    file = tmp_path / "guest.yaml"
    file.write_text(EXPERIMENT)
    return file


def test_a_run_trains_over_netem_and_open_vswitch(client: docker.DockerClient, experiment: Path) -> None:
    with Running(experiment.parent, str(experiment)) as running:
        assert running.end() == 0, running.output
    summary = running.summary
    manifest = json.loads((running.directory / "manifest.json").read_text())
    assert (manifest["backend"], manifest["switch"]) == ("netem", "openvswitch")
    assert summary["training"]["rounds"] == 4
    assert summary["training"]["identical_parameters"]
    assert summary["verdict"] in ("trusted", "suspect")
    # Below its rate, or late by less than its delay: that is the guest's one processor, which has workers to run.
    # Whether netem itself is on time is held to the verdict's tolerances where nothing else runs (test_behaviour).
    held_against_links = [reason for reason in summary["reasons"] if "->" in reason and ": rate -" not in reason]
    assert all(0 < late_ms(reason) < DELAY_MS for reason in held_against_links), held_against_links
    assert running.left_behind == NOTHING


def late_ms(reason: str) -> float:
    """Return the error of a round trip in a verdict's reason, in ms; NaN if the reason is about something else."""
    found = re.search(r": round trip ([+-][\d.]+) ms off", reason)
    return float(found[1]) if found else nan


def test_a_privileged_container_makes_networks(client: docker.DockerClient) -> None:
    """A CI job makes networks in the same way. The tools are the host's: the worker image has none."""
    image = ensure_worker_image(client, lambda _: None)
    output = client.containers.run(
        image,
        ["/host", "/bin/sh", "-c", PATH],
        entrypoint="chroot",
        user="root",
        privileged=True,
        network_mode="none",
        remove=True,
        stderr=True,
        volumes={"/": {"bind": "/host", "mode": "ro"}},
    ).decode()
    least_ms = float(output.partition("rtt min/avg/max/mdev = ")[2].partition("/")[0])
    assert 40.0 <= least_ms < 45.0, output


def test_an_engine_in_a_container_can_limit_its_own_containers() -> None:
    done = subprocess.run(["sh", "-c", NESTED, sys.executable], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "0::/worker\n"), done.stderr
