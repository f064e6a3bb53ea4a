"""A whole run, as a user makes it: what it leaves in its directory, and what its containers see meanwhile."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from statistics import median

import pytest

from testbed.controller.model.identity import Identities
from testbed.emulation import label
from testbed.emulation.network.routing import Routes
from testbed.run.conclusion.verdict import RTT_TOLERANCE_S
from testbed.spec.topology import Topology
from testbed.trace.read import read_trace
from tests.cli.standing import testbed, up
from tests.run.running import NOTHING, REPOSITORY, TRAINS, Running, interfaces
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.physics


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Running:
    before = interfaces()
    with Running(tmp_path_factory.mktemp("smoke"), "experiments/smoke.yaml") as running:
        assert running.end() == 0, running.output
    assert running.left_behind == NOTHING
    assert interfaces() == before
    return running


#: What is said of an emulation that is right, on a machine that had no time for it: other tests run beside these, and
#: other machines on the same processors. Links are slow and late then, never quick; `make smoke` wants none of it.
LATE = re.compile(r"host was starved|steps took longer|: rate -|: round trip \+|: trace replayed .* late")


def assert_trusted(running: Running) -> None:
    """Trusted, or suspect because the machine was late and for no other reason."""
    value = running.summary
    reasons = [reason for reason in value["reasons"] if not LATE.search(reason)]
    if any("trace replayed" in reason for reason in value["reasons"]):  # what falls late has been too high until then
        reasons = [reason for reason in reasons if ": rate +" not in reason]
    assert reasons == []
    assert value["verdict"] == ("suspect" if value["reasons"] else "trusted")


def test_the_summary_has_the_contracts_fields(smoke: Running) -> None:
    value = smoke.summary
    assert value.keys() == {"format", "verdict", "reasons", "notes", "training", "sync", "swaps", "events", "links"}
    assert value["training"].keys() >= {"rounds", "final_loss", "final_accuracy", "wall_seconds"}
    assert value["sync"].keys() >= {
        *("policy", "strategy", "seconds_per_round", "wan_bytes"),
        *("lower_bound_seconds", "ratio_to_lower_bound", "bound_seconds", "ratio_to_bound"),
    }
    assert value["sync"]["seconds_per_round"].keys() == {"p50", "p95"}
    for swap in value["swaps"]:
        assert swap.keys() >= {
            *("kind", "epoch", "requested_s", "active_s", "pause_ms", "lost_updates", "duplicated_updates"),
        }
    for event in value["events"]:
        assert event.keys() == {"kind", "target", "at_s", *(["changed"] if event["kind"] == "change" else [])}
    assert len(value["links"]) == 6
    for link in value["links"].values():
        assert link.keys() == {"rate_error_pct", "rate_resolution_pct", "rtt_error_ms", "replay_late_ms_p99"}


def test_it_learns_swaps_the_plan_and_the_network_and_loses_nothing(smoke: Running) -> None:
    value = smoke.summary
    assert value["training"]["rounds"] == 44
    assert value["training"]["final_accuracy"] > 0.9
    kinds = [swap["kind"] for swap in value["swaps"]]
    assert "plan" in kinds
    assert kinds.count("network") == 1
    assert [event["kind"] for event in value["events"]] == ["change", "down", "up"]
    assert all(swap["lost_updates"] == swap["duplicated_updates"] == 0 for swap in value["swaps"])
    final = json.loads((smoke.directory / "final.json").read_text())
    assert final["lost_updates"] == final["duplicated_updates"] == 0


#: What a machine that has other work may hold one round up for, and a sixth of a member's round timeout.
HELD_UP_MS = 20e3


def test_a_plan_swap_pauses_less_than_a_round(smoke: Running) -> None:
    """Than a slow one, but for what other tests hold it up."""
    value = smoke.summary
    round_ms = 1e3 * value["sync"]["seconds_per_round"]["p95"]
    # Too early in a run there is nothing to compare with, and the pause is not known.
    pauses = [swap["pause_ms"] for swap in value["swaps"] if swap["kind"] == "plan" and swap["pause_ms"] is not None]
    assert all(pause < round_ms + HELD_UP_MS for pause in pauses)


def test_all_workers_end_with_the_same_bits(smoke: Running) -> None:
    final = json.loads((smoke.directory / "final.json").read_text())
    digests = {member["digest"] for member in final["members"].values()}
    assert len(final["members"]) == 4
    assert len(digests) == 1
    assert re.fullmatch("[0-9a-f]{64}", digests.pop())


def test_the_run_is_trusted(smoke: Running) -> None:
    assert_trusted(smoke)


def test_the_directory_holds_what_a_reader_needs(smoke: Running) -> None:
    names = {path.name for path in smoke.directory.iterdir()}
    assert names >= {
        *("manifest.json", "events.jsonl", "rounds.jsonl", "links.jsonl", "traffic.jsonl", "decisions.jsonl"),
        *("views", "plans", "logs", "summary.json", "report.html"),
    }
    manifest = json.loads((smoke.directory / "manifest.json").read_text())
    assert manifest["backend"] in ("netem", "userspace")
    assert manifest["transport"]["fitted"]
    assert manifest["transport"]["refused"] == {}
    assert any("smoke.yaml" in name for name in manifest["inputs"])
    assert {"libc6", "python3"} <= manifest["image_packages"]["debian"].keys()
    assert "torch" in manifest["image_packages"]["python"]
    page = (smoke.directory / "report.html").read_text()
    assert "<svg" in page
    assert not re.search(r"""(src|href)=["']https?:""", page)


def test_what_it_measured_can_be_replayed(smoke: Running, tmp_path: Path) -> None:
    """As a trace, on another network: the rate of the link that the experiment changed from 20 to 4 Mbit/s."""
    trace = tmp_path / "measured.csv"
    testbed("trace", "convert", "--run", smoke.directory, "--link", "paris->london", trace)
    rates = {row.time_s: row.rate_bps for row in read_trace(trace).trace.rows}
    (changed_s,) = (event["at_s"] for event in smoke.summary["events"] if event["kind"] == "change")
    slow = [rate for at_s, rate in rates.items() if at_s > changed_s + 1 and rate is not None]
    assert slow, rates
    assert median(slow) == pytest.approx(4e6, rel=0.02)
    offset = f"{changed_s + 3:.3f}s"
    pair = {
        "name": "pair",
        "sites": {"paris": {"workers": 1}, "london": {"workers": 1}},
        "links": [{"between": ["paris", "london"], "delay": "5ms", "trace": {"file": trace.name, "offset": offset}}],
    }
    file = tmp_path / "pair.yaml"
    file.write_text(json.dumps(pair))
    with up(file, f"t{os.getpid()}-measured") as network:
        link = network.status()["links"]["paris->london"]
        assert link["replayed"]
        assert link["rate_bps"] in [pytest.approx(rate) for rate in rates.values()]
        assert link["rate_bps"] < 20e6 / 2  # a single second's, which may be off


#: The quickstart in a third of its rounds, with its events in the drop, which begins about the thirtieth, or after it.
SOONER = (
    *("--set", "train.rounds=60"),
    *(
        "--set",
        "events=[{round: 50, down: [toronto, tokyo]}, {round: 53, up: [toronto, tokyo]}, "
        "{round: 56, swap: ../topologies/quickstart-uplink.yaml}]",
    ),
)


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """What `make emulate` runs, in training. The tests that look at it come before the one that waits for its end."""
    with Running(tmp_path_factory.mktemp("quickstart"), "experiments/quickstart.yaml", *SOONER) as running:
        running.wait_for(TRAINS)
        yield running


def pids(running: Running) -> dict[str, int]:
    """Worker → pid of its container's first process."""
    return {c.attrs["Config"]["Hostname"]: c.attrs["State"]["Pid"] for c in running.containers}


def inside(pid: int, *command: str) -> str:
    entered = ["nsenter", "-t", str(pid), "-n", *command]
    return subprocess.run(entered, capture_output=True, text=True, check=True).stdout


def test_round_trips_between_sites_are_the_sum_along_the_route(quickstart: Running) -> None:
    """The least of many, since training's own packets wait in the same queues."""
    topology = Topology.load(REPOSITORY / "topologies" / "quickstart.yaml")
    routes, pid = Routes.over(topology), pids(quickstart)
    first = {worker.site: worker.name for worker in reversed(topology.workers)}
    address = {w: re.findall(r"inet ([\d.]+)", inside(pid[w], "ip", "addr", "show", "eth0"))[0] for w in first.values()}
    source = first.pop("tokyo")
    backend = json.loads((quickstart.directory / "manifest.json").read_text())["backend"]
    tolerance_ms = 1e3 * RTT_TOLERANCE_S[backend]
    errors_ms: dict[str, float] = {}
    while not quickstart.happened("down", "toronto-tokyo"):  # of those of which all were late
        pings = {
            site: subprocess.Popen(
                ["nsenter", "-t", str(pid[source]), "-n", "ping", "-nq", "-c", "60", "-i", "0.1", address[worker]],
                stdout=subprocess.PIPE,
                text=True,
            )
            for site, worker in first.items()
            if errors_ms.get(site, inf) > tolerance_ms
        }
        for site, ping in pings.items():
            least = re.search(r"= ([\d.]+)/", ping.communicate()[0])
            assert least, f"no answer from {site}"
            way = (*routes.links("tokyo", site), *routes.links(site, "tokyo"))
            asked = sum(topology.links[name].state.delay_s for name in way) + 4 * topology.lan.delay
            errors_ms[site] = min(errors_ms.get(site, inf), float(least[1]) - 1e3 * asked)
        if max(errors_ms.values()) <= tolerance_ms:
            break
    print(f"round-trip errors from {source} in ms: {errors_ms}")
    assert max(abs(error) for error in errors_ms.values()) <= tolerance_ms


def test_a_worker_has_no_interface_but_the_emulated_one_and_no_way_around_it(quickstart: Running) -> None:
    for worker, pid in pids(quickstart).items():
        links = [line.split(": ")[1].split("@")[0] for line in inside(pid, "ip", "-o", "link").splitlines()]
        assert links == ["lo", "eth0"], worker
        ways = inside(pid, "ip", "route", "show", "table", "all", "type", "unicast").splitlines()
        assert len(ways) == 2, ways
        assert all("dev eth0" in way for way in ways)
        assert inside(pid, "ip", "-6", "addr") == ""


def test_a_container_has_no_privilege(quickstart: Running) -> None:
    for container in quickstart.containers:
        status = Path(f"/proc/{container.attrs['State']['Pid']}/status").read_text()
        assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
        assert re.search(r"^CapBnd:\t0+$", status, re.MULTILINE)
        assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
        assert re.search(r"^Uid:\t(?!0\t)", status, re.MULTILINE)
        assert container.attrs["HostConfig"]["ReadonlyRootfs"]


def test_a_container_has_its_own_member_s_socket_alone(quickstart: Running) -> None:
    sockets = label.state_folder(quickstart.directory.name) / "control"
    assert stat.filemode(sockets.stat().st_mode) == "drwx------"
    for container in quickstart.containers:
        mounts = [mount for mount in container.attrs["Mounts"] if mount["Type"] == "bind"]
        own, names = sockets / container.attrs["Config"]["Hostname"], sockets / ".names"
        files = (names / name for name in ("hosts", "resolv.conf", "container-nsswitch.conf"))
        expected = {str(path): False for path in (own, *files)}
        assert {mount["Source"]: mount["RW"] for mount in mounts} == expected
        # By its exit code: on a busy host the engine may lose what a short command prints.
        alone = container.exec_run(["sh", "-c", '[ "$(ls -A /run/testbed)" = control.sock ]'])
        assert alone.exit_code == 0


def test_no_secret_of_a_run_is_in_its_directory_its_logs_or_the_list_of_processes(quickstart: Running) -> None:
    spec = label.state_folder(quickstart.directory.name) / "controller.json"
    assert stat.filemode(spec.stat().st_mode) == "-rw-------"
    read = json.loads(spec.read_text())
    identities = Identities(read["members"], read["secret"])
    keys = {key for member in identities.members for key in identities.keys(member).values()}
    secrets = {read["secret"], *map(identities.token, identities.members), *keys}
    kept = [path.read_text(errors="replace") for path in quickstart.directory.rglob("*") if path.is_file()]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended meanwhile
            kept.append(process.read_text(errors="replace"))
    kept += [json.dumps(c.attrs) for c in quickstart.containers]
    assert not [secret for secret in secrets for text in kept if secret in text]


def test_the_quickstart_comes_to_its_end(quickstart: Running) -> None:
    assert quickstart.process.wait(PATIENCE_S) == 0, quickstart.output
    value = quickstart.summary
    print(json.dumps({**value, "links": "…"}, indent=1))
    assert_trusted(quickstart)
    assert value["training"]["rounds"] == 60
    assert value["training"]["final_accuracy"] >= 0.95
    assert value["training"]["identical_parameters"]
    kinds = [swap["kind"] for swap in value["swaps"]]
    assert "plan" in kinds
    assert "network" in kinds
    assert [event["kind"] for event in value["events"]] == ["down", "up"]
    assert all(swap["lost_updates"] == swap["duplicated_updates"] == 0 for swap in value["swaps"])
    final = json.loads((quickstart.directory / "final.json").read_text())
    assert final["lost_updates"] == final["duplicated_updates"] == 0
    assert quickstart.left_behind == NOTHING
