"""What networks that stay up carry, measured from outside."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path

import pytest

from testbed.run.conclusion.verdict import RATE_TOLERANCE, RTT_TOLERANCE_S
from tests.cli.standing import LAN_S, Standing, testbed, up, write
from tests.measuring import judge

pytestmark = pytest.mark.physics

#: One name for each network of this process, so that what else is up on the machine is not meant.
MARK = f"t{os.getpid()}"


def assert_round_trip(network: Standing, source: str, target: str, expected_s: float) -> None:
    """Within the verdict's tolerance."""
    status = network.status()
    tolerance_s, address = RTT_TOLERANCE_S[status["backend"]], status["hosts"][target]["address"]
    pings = iter(network.round_trips_s(source, address, SAMPLES * PINGS))
    judge(lambda: min(islice(pings, PINGS)), expected_s - tolerance_s, expected_s + tolerance_s, "s", most=SAMPLES)


#: Samples of a judgement, and the pings of which the shortest is a sample.
SAMPLES, PINGS = 25, 4

#: Prints the bit/s of the frames that come in a window of half a second, once for each window, without warming up.
SINK = """
import socket, sys, time
sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sink.bind((sys.argv[1], 9))
print("ready", flush=True)
sink.recv(2000)
warm = time.monotonic() + 0.4
while time.monotonic() < warm:
    sink.recv(2000)
began = last = time.monotonic()
for window in range(int(sys.argv[2])):
    size = 0
    while last < began + 0.5:
        size += len(sink.recv(2000)) + 42
        last = time.monotonic()
    print(size * 8 / (last - began), flush=True)
    began = last
"""
FLOOD = """
import socket, sys, time
flood = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
flood.connect((sys.argv[1], 9))
rate, began, sent = float(sys.argv[2]) * 1.25 / 8 / 1514, time.monotonic(), 0
while True:
    while sent < (time.monotonic() - began) * rate:
        try:
            flood.send(bytes(1472))
        except ConnectionRefusedError:
            sys.exit()  # the sink has seen enough
        sent += 1
    time.sleep(0.001)
"""


@contextmanager
def floods(*flows: tuple[Standing, str, str, float]) -> Iterator[Callable[[], list[float]]]:
    """Flood networks side by side; a flow is (network, from, to, bit/s asked for). Yields what reads the next rates.

    The rates are in bit/s of frames, those of one window for each flow.
    """
    with ExitStack() as stack:
        sinks = []
        for network, _, target, _ in flows:
            sink = stack.enter_context(
                network.start(target, "python3", "-c", SINK, network.address(target), str(SAMPLES))
            )
            stack.callback(sink.kill)
            assert sink.stdout and sink.stdout.readline() == "ready\n"
            sinks.append(sink.stdout)
        for network, source, target, rate in flows:
            flood = network.start(source, "python3", "-c", FLOOD, network.address(target), str(rate))
            stack.enter_context(flood)
            stack.callback(flood.kill)
        yield lambda: [float(sink.readline()) for sink in sinks]


def test_two_networks_beside_each_other_carry_what_was_asked_of_each(tmp_path: Path) -> None:
    first = write(tmp_path, "first", {"quito": 1, "b-lima": 1}, ("quito", "b-lima", "20mbit", "10ms"))
    second = write(tmp_path, "second", {"quito": 1, "lima": 1}, ("quito", "lima", "8mbit", "30ms"))
    with up(first, f"{MARK}-a") as one, up(second, f"{MARK}-a-b") as two:
        tolerance = RATE_TOLERANCE[one.status()["backend"]]
        flows = (one, "quito-w0", "b-lima-w0", 20e6), (two, "quito-w0", "lima-w0", 8e6)
        with floods(*flows) as rates:

            def worst_error() -> float:
                return max((rate / asked - 1 for rate, (*_, asked) in zip(rates(), flows, strict=True)), key=abs)

            judge(worst_error, -tolerance, tolerance, "of the rate", most=SAMPLES)
        assert_round_trip(one, "quito-w0", "b-lima-w0", 2 * 0.010 + LAN_S)
        assert_round_trip(two, "quito-w0", "lima-w0", 2 * 0.030 + LAN_S)


def test_a_round_trip_follows_every_change(tmp_path: Path) -> None:
    quito_lima, lima_cuzco = ("quito", "lima", "20mbit", "10ms"), ("lima", "cuzco", "20mbit", "15ms")
    line = write(tmp_path, "line", {"quito": 1, "lima": 1, "cuzco": 1}, quito_lima, lima_cuzco)
    sites = {"quito": 1, "lima": 1, "cuzco": 1, "potosi": 1}
    longer = write(tmp_path, "longer", sites, quito_lima, ("lima", "potosi", "20mbit", "5ms"), lima_cuzco)
    with up(line, f"{MARK}-trips") as network:
        assert_round_trip(network, "quito-w0", "cuzco-w0", 2 * (0.010 + 0.015) + LAN_S)
        network.verb("link set", "quito->lima", "--delay", "30ms")
        assert_round_trip(network, "quito-w0", "lima-w0", 0.030 + 0.010 + LAN_S)
        network.verb("link set", "quito->lima", "--delay", "10ms")
        assert_round_trip(network, "quito-w0", "lima-w0", 2 * 0.010 + LAN_S)
        network.verb("network swap", longer)
        assert_round_trip(network, "quito-w0", "potosi-w0", 2 * (0.010 + 0.005) + LAN_S)
        testbed("worker", "add", "lima", "--name", network.name)
        assert_round_trip(network, "cuzco-w0", "lima-w1", 2 * 0.015 + LAN_S)
