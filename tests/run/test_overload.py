"""Runs that go wrong on purpose: the verdict must say so, and why."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.emulation.host import budget
from testbed.emulation.links.replay import AHEAD_S
from testbed.emulation.shaping import available_backends
from testbed.run.conclusion.verdict import REPLAY_LATE_P99_S
from tests.run.running import NOTHING, TRAINS, Running

#: Rows are handed over ahead of their time; for so long none are. Sixty ticks are late then, of some six hundred in the
#: run, and more on a busy host.
STOPPED_S = AHEAD_S + 6.0

TOPOLOGY: dict[str, Any] = {
    "name": "pair",
    "sites": {"quito": {"workers": 1}, "lima": {"workers": 1}},
    "links": [
        {
            "between": ["quito", "lima"],
            "delay": "5ms",
            "forward": {"rate": "4mbit", "trace": {"file": "pair.csv"}},
            "backward": {"rate": "60mbit"},
        }
    ],
}
TRACE = "time_s,rate_mbps\n" + "".join(f"{tick / 10},{4 + tick % 2 / 10}\n" for tick in range(20))


#: Samples in a step.
BATCH = 512


def step_s() -> float:
    """The time of a step with which two workers keep all but a tenth of this host busy. It is measured now: what was
    measured once, beside other work perhaps, is not what this host can do.

    A step is nearly all work then, which the host just carries: beside programs that want all of it too, the shorter
    steps of a container that sleeps in between were seen to be as quick as ever.
    """
    backend = next(name for name, complaint in available_backends().items() if complaint is None)
    found = budget.measure_budget(backend)
    return 2 * found.step_seconds["cnn"] * BATCH / budget.BATCH / (0.9 * found.cores)


def write(folder: Path, rounds: int, step_s: float) -> Path:
    """An experiment of two workers whose every round sends 0.6 MB over 4 Mbit/s."""
    (folder / "pair.csv").write_text(TRACE)
    (folder / "pair.yaml").write_text(yaml.safe_dump(TOPOLOGY))
    experiment = folder / "experiment.yaml"
    train = {"model": "cnn", "batch": BATCH, "rounds": rounds, "evaluate_every": 1000}
    compute = {"step_time": f"{1e3 * step_s:.1f}ms"}
    value = {"name": "pair", "topology": "pair.yaml", "train": train, "compute": compute}
    experiment.write_text(yaml.safe_dump(value))
    return experiment


@contextmanager
def burners() -> Iterator[None]:
    """Two programs a processor that want all of it, above the workers' share: each in a session of its own, since Linux
    gives a session, whatever it does, as much as the workers together."""
    with ExitStack() as stack:
        for _ in range(2 * (os.cpu_count() or 1)):
            burner = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
            stack.callback(burner.wait)
            stack.callback(burner.kill)
        yield


def router(running: Running, interface: str) -> int:
    """A thread in the namespace of the router that has this interface."""
    for thread in Path(f"/proc/{running.process.pid}/task").iterdir():
        words = ["nsenter", f"--net={thread}/ns/net", "ip", "-o", "link", "show", interface]
        if subprocess.run(words, capture_output=True, check=False).returncode == 0:
            return int(thread.name)
    pytest.fail(f"no router has an interface {interface}")


def unshape(running: Running, interface: str) -> None:
    """What a careless neighbour does: takes the shaping off an interface, behind the emulation's back."""
    inside = ["nsenter", "-t", str(router(running, interface)), "-n"]
    backend = json.loads((running.directory / "manifest.json").read_text())["backend"]
    if backend == "netem":
        subprocess.run([*inside, "tc", "qdisc", "del", "dev", interface, "root"], check=True)
        return
    for form in ("iptables-legacy", "iptables-nft", "iptables"):
        subprocess.run([*inside, form, "-t", "mangle", "-F"], capture_output=True, check=False)


@pytest.mark.physics
def test_an_overloaded_host_a_stopped_replay_and_a_link_without_shaping_are_told(tmp_path: Path) -> None:
    with Running(tmp_path, str(write(tmp_path, 30, step_s())), "--strict") as running:
        running.wait_for(TRAINS)
        with burners():
            unshape(running, "lima")
            os.kill(running.process.pid, signal.SIGSTOP)
            time.sleep(STOPPED_S)
            os.kill(running.process.pid, signal.SIGCONT)
            code = running.end()
    assert code == 1, running.output
    assert running.left_behind == NOTHING
    value = running.summary
    assert value["verdict"] == "suspect"
    reasons = "\n".join(value["reasons"])
    assert re.search(r"the host was starved of processor time in \d+% of the seconds", reasons)
    assert re.search(r"\d+% of the steps took longer than declared", reasons)
    assert re.search(r"quito->lima: trace replayed \d+\.\d ms late at the 99th percentile", reasons)
    assert re.search(r"quito->lima: \d+\.\d MB bypassed the shaper", reasons)
    assert not re.search("lima->quito: .*(rate|shaping)", reasons)
    assert value["links"]["quito->lima"]["replay_late_ms_p99"] > 1e3 * REPLAY_LATE_P99_S
    said = " ".join(running.output.split())
    assert all(reason in said for reason in value["reasons"]), "each is said in the terminal too"


@pytest.mark.tour
@pytest.mark.system
def test_a_dead_relay_ends_the_run_and_it_is_said(tmp_path: Path) -> None:
    with Running(tmp_path, str(write(tmp_path, 1000, step_s=0.5))) as running:
        running.wait_for(TRAINS)
        if json.loads((running.directory / "manifest.json").read_text())["backend"] != "userspace":
            pytest.skip("the kernel shapes here; there is no relay that could die")
        os.kill(core_of(running.process.pid), signal.SIGKILL)
        assert running.end() == 1
    value = running.summary
    assert value["verdict"] == "suspect"
    assert "the shaping core was ended by signal 9 (SIGKILL)" in value["reasons"][0]
    assert "the shaping core was ended by signal 9" in running.output
    assert running.left_behind == NOTHING


def core_of(pid: int) -> int:
    """The process that relays the packets of a run."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    for child in (int(word) for path in children for word in path.read_text().split()):
        if Path(f"/proc/{child}/comm").read_text() == "testbed-shaper\n":
            return child
    pytest.fail("the run has no shaping core")
