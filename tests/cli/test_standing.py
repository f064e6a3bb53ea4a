"""Networks that stay up, from the outside: brought up, worked in, changed and taken down by the program's verbs."""

from __future__ import annotations

import http.client
import json
import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from websockets.sync.client import unix_connect

from testbed.emulation import label
from testbed.emulation.label import owner
from testbed.run.conclusion.verdict import RTT_TOLERANCE_S
from tests.cli.standing import LAN_S, Standing, command, environment, left_of, testbed, up, write
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.system

#: One name for each network of this process, so that what else is up on the machine is not meant.
MARK = f"t{os.getpid()}"

QUITO_LIMA = ("quito", "lima", "20mbit", "10ms")
LIMA_CUZCO = ("lima", "cuzco", "20mbit", "15ms")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("topologies")


@pytest.fixture(scope="module")
def line(folder: Path) -> Path:
    return write(folder, "line", {"quito": 1, "lima": 1, "cuzco": 1}, QUITO_LIMA, LIMA_CUZCO)


@pytest.fixture(scope="module")
def andes(line: Path) -> Iterator[Standing]:
    """For tests that leave it as it was. Its API is on a port as well."""
    with up(line, f"{MARK}-andes", "--port", "0") as network:
        yield network


def owner_pid(name: str) -> int | None:
    found = owner(name)
    return found.pid if found else None


def assert_answered(network: Standing, source: str, target: str, delays_s: float) -> None:
    """A ping is answered, and no sooner than its route's delays: a host may hold a packet up, never hurry it."""
    status = network.status()
    found = network.round_trip_s(source, status["hosts"][target]["address"])
    assert found >= delays_s - RTT_TOLERANCE_S[status["backend"]]


@pytest.mark.tour
def test_status_says_what_there_is(andes: Standing, line: Path) -> None:
    status = andes.status()
    assert status["name"] == andes.name
    assert status["file"] == str(line)
    assert status["pid"] == owner_pid(andes.name)
    assert status["failure"] is None
    assert {name: host["address"] for name, host in status["hosts"].items()} == {
        "quito-w0": "10.0.0.2",
        "lima-w0": "10.0.1.2",
        "cuzco-w0": "10.0.2.2",
        "quito-r": "10.0.0.1",
        "lima-r": "10.0.1.1",
        "cuzco-r": "10.0.2.1",
    }
    link = status["links"]["lima->cuzco"]
    asked = {"rate_bps": 20e6, "delay_s": 0.015, "jitter_s": 0.0, "loss": 0.0, "up": True, "queue_bytes": 75_000}
    assert link | asked == link
    shown = andes.verb("network list")
    assert "lima->cuzco" in shown
    assert "10.0.2.2" in shown


@pytest.mark.tour
def test_a_program_in_a_host_is_as_if_called_directly(andes: Standing) -> None:
    assert_answered(andes, "quito-w0", "cuzco-w0", 2 * (0.010 + 0.015) + LAN_S)
    andes.verb("network exec", "lima-r", "--", "sh", "-c", "exit 7", code=7)
    assert andes.verb("network exec", "quito-w0", "--", "cat", input="through\n") == "through\n"
    assert andes.address("lima-w0") in andes.verb("network exec", "quito-w0", "--", "getent", "hosts", "lima-w0")
    addresses = json.loads(andes.verb("network exec", "quito-w0", "--", "ip", "-j", "address"))
    assert {each["ifname"] for each in addresses} == {"lo", "eth0"}
    andes.verb("network exec", "quito", "--", "true", code=2)
    andes.verb("network exec", "quito-w0", "--", "no-such-program", code=127)


def test_a_signal_reaches_the_program_in_a_host(andes: Standing) -> None:
    process = andes.start("quito-w0", "sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done")
    assert process.stdout and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 9


def test_a_program_in_a_host_has_the_terminal(andes: Standing) -> None:
    ours, theirs = pty.openpty()
    words = command("network", "exec", "--name", andes.name, "quito-w0", "--", "tty")
    done = subprocess.run(words, stdin=theirs, stdout=subprocess.PIPE, env=environment(), check=True)
    assert done.stdout.decode().strip() == os.ttyname(theirs)
    os.close(ours)
    os.close(theirs)


@pytest.mark.tour
def test_a_link_is_changed_in_place(andes: Standing) -> None:
    before = andes.status()["links"]["quito->lima"]
    assert "5.000 Mbit/s  30.00 ms" in andes.verb("link set", "quito->lima", "--rate", "5mbit", "--delay", "30ms")
    assert_answered(andes, "quito-w0", "lima-w0", 0.030 + 0.010 + LAN_S)
    link = andes.status()["links"]["quito->lima"]
    assert (link["rate_bps"], link["delay_s"]) == (5e6, 0.030)
    assert link["packets"] >= before["packets"] + 8
    assert andes.status()["links"]["lima->quito"]["delay_s"] == 0.010

    andes.verb("link set", "quito->lima", "--delay", "10ms")
    assert andes.status()["links"]["quito->lima"]["rate_bps"] == 5e6  # what is left out stays
    andes.verb("link set", "quito->lima", "--rate", "20mbit")


@pytest.mark.tour
def test_the_api_and_the_commands_are_one(andes: Standing) -> None:
    folder = label.state_folder(andes.name)
    token = (folder / "api.token").read_text().strip()
    found = re.search(r"http://(127\.0\.0\.1:\d+)/#token=(\S+)\"", (folder / "page.html").read_text())
    assert found and found[2] == token
    link = "quito->lima"

    def patch(patch: dict[str, Any], **headers: str) -> tuple[int, dict[str, Any], str | None]:
        connection = http.client.HTTPConnection(found[1], timeout=PATIENCE_S)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
        connection.request("PATCH", f"/api/v1/links/{quote(link)}", json.dumps(patch), headers)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read()), reply.headers["ETag"]

    assert patch({"rate": None, "delay": None})[0] == 200  # what tests before this one changed
    with unix_connect(str(folder / "network.sock"), "ws://localhost/api/v1/stream", max_queue=None) as stream:
        snapshot = json.loads(stream.recv(PATIENCE_S))
        before = snapshot["state"]["links"][link]
        status, changed, tag = patch({"delay": "30ms"}, **{"If-Match": f'"{before["tag"]}"'})
        assert (status, changed["delay_s"], changed["rate_bps"]) == (200, 0.030, before["rate_bps"])
        assert_answered(andes, "quito-w0", "lima-w0", 0.030 + 0.010 + LAN_S)
        assert patch({"delay": "50ms"}, **{"If-Match": f'"{before["tag"]}"'})[0] == 412
        assert patch({"delay": None}, **{"If-Match": tag or ""})[:2] == (200, before)
        assert_answered(andes, "quito-w0", "lima-w0", 2 * 0.010 + LAN_S)
        andes.verb("link set", link, "--rate", "5mbit")
        told = before
        while told["rate_bps"] != 5e6:
            told = json.loads(stream.recv(PATIENCE_S))["set"].get("links", {}).get(link, told)
        assert patch({"rate": None})[:2] == (200, before)


@pytest.mark.tour
def test_a_pair_goes_down_and_comes_back(andes: Standing) -> None:
    address = andes.address("lima-w0")
    assert "down" in andes.verb("link down", "quito->lima")
    links = andes.status()["links"]
    assert [links[name]["up"] for name in ("quito->lima", "lima->quito", "lima->cuzco")] == [False, False, True]
    andes.verb("network exec", "quito-w0", "--", "ping", "-c", "1", "-W", "1", address, code=1)
    andes.verb("link up", "lima->quito")
    assert_answered(andes, "quito-w0", "lima-w0", 2 * 0.010 + LAN_S)


@pytest.mark.tour
def test_a_change_that_cannot_be_is_refused(andes: Standing, line: Path) -> None:
    before = andes.status()["links"]["quito->lima"]
    for words in (("quito->lima", "--rate", "5"), ("quito->lima", "--loss", "101%"), ("quito->cuzco", "--down")):
        andes.verb("link set", *words, code=2)
    after = andes.status()["links"]["quito->lima"]
    assert {key: after[key] for key in ("rate_bps", "loss", "up")} == {
        key: before[key] for key in ("rate_bps", "loss", "up")
    }
    testbed("network", "up", line, "--name", andes.name, code=2)
    assert andes.status()["failure"] is None


ECHO = """
import socket, sys
if sys.argv[1] == "serve":
    listener = socket.create_server((sys.argv[2], 7000))
    print("ready", flush=True)
    peer, _ = listener.accept()
    while word := peer.recv(100):
        peer.sendall(word)
else:
    peer = socket.create_connection((sys.argv[2], 7000), timeout=60)
    for line in sys.stdin:
        peer.sendall(line.encode())
        print(peer.recv(100).decode(), end="", flush=True)
"""


@pytest.mark.tour
def test_a_swap_keeps_what_stays_and_replaces_the_rest(line: Path, folder: Path) -> None:
    other = write(
        folder,
        "other",
        {"quito": 2, "lima": 1, "potosi": 1},
        QUITO_LIMA,
        ("lima", "potosi", "10mbit", "5ms"),
    )
    with up(line, f"{MARK}-swap") as network:
        address = network.address("lima-w0")
        before = network.status()
        server = network.start("lima-w0", "python3", "-c", ECHO, "serve", address)
        assert server.stdout and server.stdout.readline() == "ready\n"
        client = network.start("quito-w0", "python3", "-c", ECHO, "ask", address)
        assert client.stdin and client.stdout

        def echo(word: str) -> str:
            assert client.stdin and client.stdout
            client.stdin.write(f"{word}\n")
            client.stdin.flush()
            return client.stdout.readline().strip()

        assert echo("before") == "before"
        answers = folder / "answers"
        pings = network.start("quito-w0", "sh", "-c", f"exec ping -n -i 0.01 {address} > {answers}")
        until(lambda: answers.exists() and "icmp_seq" in answers.read_text())
        said = network.verb("network swap", other)
        assert echo("after") == "after"
        by_then = answers.read_text().count("icmp_seq")
        until(lambda: answers.read_text().count("icmp_seq") > by_then)
        pings.send_signal(signal.SIGINT)
        assert pings.wait(PATIENCE_S) == 0
        numbers = [int(number) for number in re.findall(r"icmp_seq=(\d+)", answers.read_text())]
        assert numbers == list(range(1, len(numbers) + 1)), "none is lost, from before the swap until after it"

        assert "sites added: potosi" in said
        assert "sites removed: cuzco" in said
        assert "workers added: potosi-w0, quito-w1" in said
        assert "workers removed: cuzco-w0" in said
        assert "links removed: cuzco->lima, lima->cuzco" in said
        assert "unchanged links: 0" in " ".join(said.split())
        after = network.status()
        assert after["hosts"]["quito-w0"] == before["hosts"]["quito-w0"], "the same container"
        assert after["links"]["quito->lima"]["bytes"] > before["links"]["quito->lima"]["bytes"]
        assert set(after["hosts"]) == {
            *("quito-w0", "quito-w1", "lima-w0", "potosi-w0"),
            *("quito-r", "lima-r", "potosi-r"),
        }
        assert not Path(f"/proc/{before['hosts']['cuzco-w0']['pid']}").exists()
        assert not Path(f"/proc/{before['hosts']['cuzco-r']['pid']}").exists()
        assert_answered(network, "quito-w1", "potosi-w0", 2 * (0.010 + 0.005) + LAN_S)

        limited = {"quito": 1, "lima": {"workers": 1, "cpus": 0.5}, "cuzco": 1}
        said = network.verb("network swap", write(folder, "limited", limited, QUITO_LIMA, LIMA_CUZCO))
        assert "workers removed: potosi-w0, quito-w1" in said
        assert "workers changed: lima-w0" in said
        assert network.status()["hosts"]["lima-w0"]["pid"] != before["hosts"]["lima-w0"]["pid"]
        assert_answered(network, "quito-w0", "lima-w0", 2 * 0.010 + LAN_S)
        assert_answered(network, "quito-w0", "cuzco-w0", 2 * (0.010 + 0.015) + LAN_S)
        network.verb("network down")
        assert left_of(network.name) == [], "programs that ran in its hosts went with it"
        assert server.wait(PATIENCE_S) == -signal.SIGKILL


@pytest.mark.tour
def test_two_networks_know_nothing_of_each_other(folder: Path) -> None:
    """The same sites, and so the same addresses and interfaces, in both; and names that run into one another."""
    first = write(folder, "first", {"quito": 1, "b-lima": 1}, ("quito", "b-lima", "20mbit", "10ms"))
    second = write(folder, "second", {"quito": 1, "lima": 1}, ("quito", "lima", "8mbit", "30ms"))
    with up(first, f"{MARK}-a") as one, up(second, f"{MARK}-a-b") as two:
        assert_answered(one, "quito-w0", "b-lima-w0", 2 * 0.010 + LAN_S)
        assert_answered(two, "quito-w0", "lima-w0", 2 * 0.030 + LAN_S)
        testbed("network", "clean", "--name", one.name)
        assert left_of(one.name) == []
        assert two.status()["failure"] is None
        assert_answered(two, "quito-w0", "lima-w0", 2 * 0.030 + LAN_S)


@pytest.mark.tour
def test_a_worker_that_is_added_is_as_the_others_are_and_goes_with_them(line: Path) -> None:
    name = f"{MARK}-add"
    with up(line, name) as network:
        said = json.loads(testbed("worker", "add", "lima", "--name", name, "--json"))
        assert said == {"worker": "lima-w1", "site": "lima", "address": "10.0.1.3"}
        assert_answered(network, "cuzco-w0", "lima-w1", 2 * 0.015 + LAN_S)
        testbed("worker", "kill", "lima-w1", "--name", name, code=2)  # nothing of ours runs in it
        network.verb("network swap", line)
        assert {host for host in network.status()["hosts"] if "-w" in host} == {"quito-w0", "lima-w0", "cuzco-w0"}
        testbed("worker", "add", "cuzco", "--name", name)
    assert left_of(name) == []


def test_a_container_that_ended_is_shown(line: Path) -> None:
    with up(line, f"{MARK}-ended") as network:
        os.kill(network.status()["hosts"]["quito-w0"]["pid"], signal.SIGKILL)
        until(lambda: not network.status()["hosts"]["quito-w0"]["running"])
        assert "ended" in network.verb("network list")
        network.verb("network exec", "quito-w0", "--", "true", code=1)
        network.verb("network exec", "lima-w0", "--", "true")


@pytest.mark.tour
def test_after_a_kill_clean_leaves_nothing_and_its_name_is_free(line: Path) -> None:
    name = f"{MARK}-kill"
    with up(line, name):
        pid = owner_pid(name)
        assert pid
        os.kill(pid, signal.SIGKILL)
        testbed("network", "clean", "--name", name)
        assert left_of(name) == []
        testbed("network", "up", line, "--name", name)
        pid = owner_pid(name)
        assert pid
        os.kill(pid, signal.SIGKILL)  # and what is left of it is not in the way of the next
        testbed("network", "up", line, "--name", name)
    assert left_of(name) == []


@pytest.mark.tour
def test_an_owner_that_is_asked_to_end_takes_everything_away(line: Path) -> None:
    name = f"{MARK}-end"
    with up(line, name) as network:
        asleep = network.start("quito-w0", "sh", "-c", "echo ready; exec sleep 600")
        assert asleep.stdout and asleep.stdout.readline() == "ready\n"
        pid = owner_pid(name)
        assert pid
        os.kill(pid, signal.SIGTERM)
        until(lambda: left_of(name) == [])
        assert asleep.wait(PATIENCE_S) == -signal.SIGKILL


#: How often one is interrupted that may be up, and done, before a busy host lets the interrupt be sent.
TIMES = 5


@pytest.mark.parametrize("line_said", ["Docker engine", "shaping backend", "directed links"])
def test_an_interrupt_while_it_is_built_leaves_nothing(line: Path, line_said: str) -> None:
    name = f"{MARK}-int"
    words = command("network", "up", line, "--name", name)
    for _ in range(TIMES):
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment()) as process:
            assert process.stdout
            assert any(line_said in said for said in process.stdout)
            process.send_signal(signal.SIGINT)
            code = process.wait(PATIENCE_S)
        if owner_pid(name) is None:
            break
        testbed("network", "down", "--name", name)
    assert code == 130
    assert left_of(name) == []


@pytest.mark.parametrize("later_s", [0.0, 0.05, 0.1, 0.2, 0.4])
def test_an_interrupt_at_the_very_beginning_ends_in_a_line(line: Path, later_s: float) -> None:
    """While modules are imported, and after: as soon as pydantic's library is there, the verbs are being imported."""
    name = f"{MARK}-early"
    for _ in range(TIMES):
        with subprocess.Popen(
            command("network", "up", line, "--name", name),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        ) as process:
            maps = Path(f"/proc/{process.pid}/maps")
            while process.poll() is None and "_pydantic_core" not in maps.read_text():
                time.sleep(0.005)
            time.sleep(later_s)
            process.send_signal(signal.SIGINT)
            _, complaints = process.communicate(timeout=PATIENCE_S)
        if owner_pid(name) is None:
            break
        testbed("network", "down", "--name", name)
    assert process.returncode == 130, complaints
    (said,) = complaints.splitlines()
    assert said.startswith("interrupted")
    assert left_of(name) == []


def test_a_swap_that_fails_leaves_the_network_as_it_was(line: Path, folder: Path) -> None:
    """Containers come first: those of new workers and of changed ones, one of which cannot start."""
    with up(line, f"{MARK}-back") as network:
        before = network.status()
        sites = {"quito": 2, "lima": {"workers": 1, "cpus": 1024}, "potosi": 1}
        links = (QUITO_LIMA, ("lima", "potosi", "10mbit", "5ms"))
        impossible = write(folder, "impossible", sites, *links)
        done = subprocess.run(
            command("network", "swap", "--name", network.name, impossible),
            capture_output=True,
            text=True,
            check=False,
            env=environment(),
            timeout=PATIENCE_S,
        )
        assert done.returncode == 3
        assert "a worker's container did not start" in done.stderr
        after = network.status()
        assert after["hosts"] == before["hosts"]
        assert after["topology"] == before["topology"]
        assert after["links"].keys() == before["links"].keys()
        assert_answered(network, "quito-w0", "cuzco-w0", 2 * (0.010 + 0.015) + LAN_S)
        possible = write(folder, "possible", sites | {"lima": {"workers": 1, "memory": "64MB"}}, *links)
        assert "workers changed: lima-w0" in network.verb("network swap", possible)
        assert_answered(network, "quito-w1", "lima-w0", 2 * 0.010 + LAN_S)


def test_mininets_prompt_works_on_it_and_takes_it_down_at_its_end(line: Path) -> None:
    name = f"{MARK}-prompt"
    asked = "nodes\niperf\nquito-w0 getent hosts lima-w0\nquito-w0 ping -nc 2 -w 60 lima-w0\npingall\nexit\n"
    done = subprocess.run(
        command("network", "up", line, "--name", name, "--cli"),
        input=asked,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=PATIENCE_S,
        check=True,
    )
    assert "cuzco-w0" in done.stdout + done.stderr
    assert "iperf3 --server" in done.stdout + done.stderr
    assert re.search(r"\d packets transmitted, 2 received", done.stdout + done.stderr)
    assert "*** Results: 0% dropped" in done.stdout + done.stderr, "workers and routers reach each other"
    assert left_of(name) == []
