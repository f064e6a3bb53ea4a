"""A run in which a worker's container dies: it is started anew, catches up, and ends with the others' bits. Meanwhile
people change a link and the policy, which the run tells of itself."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from testbed.api.client import RequestRefused, UnixConnection
from testbed.api.requests import ForcePlan, ForcePolicy
from testbed.emulation import label
from testbed.emulation.daemon import client
from tests.chaos.targets import Targets
from tests.cli.standing import testbed
from tests.run.running import FORKED, NOTHING, TRAINS, Running
from tests.waiting import until

pytestmark = pytest.mark.system


def scraped(name: str) -> str:
    """What Prometheus is told of a run."""
    connection = UnixConnection(label.state_folder(name) / "run.sock", 20)
    connection.request("GET", "/metrics")
    return connection.getresponse().read().decode()


@pytest.mark.tour
def test_a_worker_that_dies_comes_back_in_a_container_of_its_own(tmp_path: Path) -> None:
    # Who dies is known at once. Others are not to leave too, whom a busy host stops for longer than the lease's 5 s.
    sooner = ("--set", "train.rounds=32", "--set", "events=[{round: 8, kill: london-w0}]", "--set", "elastic.lease=60s")
    with Running(tmp_path, "experiments/elastic.yaml", *sooner) as running:
        running.wait_for(TRAINS)
        name = running.directory.name
        assert "7.00 ms" in testbed("link", "set", "--name", name, "paris->london", "--delay", "7ms")
        metrics = scraped(name)
        assert 'testbed_run_state{state="running"} 1.0' in metrics
        assert 'testbed_link_delay_seconds{link="paris->london",source="paris",target="london"} 0.007' in metrics
        assert re.search(r'testbed_link_carried_bytes_total\{link="london->paris",[^}]*\} [1-9]', metrics)
        client(name).do(ForcePolicy(policy="star", options={"server": "paris-w0"}))
        first = json.loads((running.directory / "plans" / "0000.json").read_text())
        with pytest.raises(RequestRefused, match="trees"):
            client(name).do(ForcePlan(plan={field: value for field, value in first.items() if field != "trees"}))
        until(lambda: running.happened("kill", "london-w0"))
        # Rounds of 2.4 s and more until it is back: else all may be over on a host that starts it slowly.
        client(name).change_link("paris->madrid", {"rate": "2mbit"})
        until(lambda: running.happened("came", "london-w0"))
        client(name).change_link("paris->madrid", {"rate": None})
        assert running.end() == 0, running.output
    assert running.left_behind == NOTHING
    summary = running.summary
    manifest = json.loads((running.directory / "manifest.json").read_text())
    assert summary["training"]["identical_parameters"]
    assert [(its["kind"], its["member"]) for its in manifest["membership_events"]] == [
        ("left", "london-w0"),
        ("came", "london-w0"),
    ]
    happened = [event["kind"] for event in summary["events"] if event["target"] == "london-w0"]
    assert happened[0] == "kill" and sorted(happened) == ["came", "kill", "left", "restart"]
    by_hand = [(its["kind"], its["target"]) for its in summary["events"] if its.get("by") == "hand"]
    slowed = ("change", "paris->madrid")
    assert by_hand == [("change", "paris->london"), ("policy", "star"), slowed, slowed]
    assert [(its["kind"], its["target"]) for its in manifest["by_hand"]] == by_hand
    assert any("changed by hand" in reason and "change paris->london at" in reason for reason in summary["reasons"])
    assert "asked to stop" not in (running.directory / "logs" / "paris-w0.log").read_text()


def test_a_member_that_is_cut_off_is_lost_and_joins_once_its_path_is_back(tmp_path: Path) -> None:
    """The controller hears it all the time, as where a site's WAN is down and its management network is up."""
    changes = ("--set", "events=[]", "--set", "sync.round_timeout=60s")
    with Running(tmp_path, "experiments/elastic.yaml", *changes, program=FORKED) as running:
        running.wait_for(TRAINS)
        targets = Targets(running, ("london-w0",), (), None)
        netns = targets.netns("london-w0")
        drop_packets("-I", netns)
        until(lambda: running.happened("left", "london-w0"))
        left_in = targets.round
        until(lambda: targets.round >= left_in + 10)
        assert not running.happened("came", "london-w0")
        drop_packets("-D", netns)
        until(lambda: running.happened("came", "london-w0"))
        assert running.end() == 0, running.output
    assert running.left_behind == NOTHING
    assert running.summary["training"]["identical_parameters"]
    events = json.loads((running.directory / "manifest.json").read_text())["membership_events"]
    assert [(its["kind"], its["member"]) for its in events] == [("left", "london-w0"), ("came", "london-w0")]
    assert "no connection can be opened between london-w0 and" in events[0]["why"]


def drop_packets(action: str, netns: Path) -> None:
    """Drop all packets of a network namespace (`-I`), or no more (`-D`)."""
    for chain in ("INPUT", "OUTPUT"):
        subprocess.run(["nsenter", f"--net={netns}", "iptables", "-w", action, chain, "-j", "DROP"], check=True)
