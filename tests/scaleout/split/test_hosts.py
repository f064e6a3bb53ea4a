"""The connection to a host's process."""

from __future__ import annotations

import errno
import os
import sys
from ipaddress import IPv4Address
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from testbed.emulation.errors import EmulationError
from testbed.emulation.network.share import OWN
from testbed.scaleout.split import hosts as module
from testbed.scaleout.split.host import HostPath, SplitHost
from testbed.scaleout.split.hosts import HostLost, HostProcess, SplitHosts
from testbed.scaleout.split.probes import STRETCH_S, ClockSample, Probed, best_of_stretches, estimate
from testbed.scaleout.split.verdict import HostSamples
from tests.waiting import PATIENCE_S, until

LOOPBACK = IPv4Address("127.0.0.1")


@pytest.mark.system
def test_values_and_errors_arrive_with_their_types_and_a_lost_host_is_named() -> None:
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "-"]
    command = [*alone, sys.executable, "-m", "testbed.scaleout.split.host"]
    host = HostProcess("north", command, LOOPBACK, b"0123456789abcdef")
    try:
        path = host.submit("paths", {"north": LOOPBACK}).result()["north"]
        assert isinstance(path, HostPath) and path.round_trip_s is not None
        with pytest.raises(AttributeError, match="fleet"):
            host.submit("fleet.kill", "a-w0").result()
        host._process.kill()
        with pytest.raises(HostLost) as caught:
            host.submit("running").result()
        assert caught.value.host == "north"
    finally:
        host.close()


SECONDS = 600


class Probing(SplitHosts):
    """One host, `north`, of which a second's probes are seen with each sample, 20 of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: list[ClockSample] = []
        self._draw = Random(1)
        monkeypatch.setattr(module, "Prober", lambda *_: self)
        super().__init__({"north": None}, {"north": LOOPBACK}, b"")  # type: ignore[dict-item]

    def seen(self) -> dict[str, Probed]:
        sent = [len(self.all) / 20 + number * 0.05 for number in range(20)]
        trips = [(at_s, at_s + self._draw.uniform(1e-3, 1e-2), self._draw.uniform(1e-3, 1e-2)) for at_s in sent]
        found = [ClockSample(at_s, received, received, received + back) for at_s, received, back in trips]
        self.all += found
        return {"north": Probed(tuple(found), len(found), 0)}

    def each(self, method: str, *_: object, **__: object) -> dict[str, Any]:
        links = {f"a->b{number}": number for number in range(26)}
        sample = {"cpu": 0.5, "late_s": 0.0, "states": [], "broken": None, "bytes": links, "counters": links}
        return {"north": {**sample, "probed": {"south": self.seen()["north"]}}}


@pytest.mark.pure
def test_what_is_kept_of_a_clock_and_a_path_does_not_grow_by_each_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Probing(monkeypatch)
    for _ in range(SECONDS):
        clock = hosts.clock("north")
    assert clock == estimate(hosts.all)
    assert len(hosts._clock_samples["north"]) <= SECONDS / STRETCH_S + 1

    hosts.all.clear()
    pair = frozenset(("north", "south"))
    samples = HostSamples(hosts, {pair: 0.0}, lambda *_: None)
    monkeypatch.setattr(hosts, "clock", lambda _: None)
    for _ in range(SECONDS):
        samples._fetch()
    path = samples.paths_seen([pair])[pair]
    assert best_of_stretches(path.samples) == best_of_stretches(hosts.all)
    assert path.sent == len(hosts.all) and len(path.samples) <= 2 * SECONDS
    assert all("bytes" not in one for one in samples._seen["north"])


@pytest.mark.local
def test_samples_that_end_by_an_error_without_a_text_have_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Probing(monkeypatch)
    samples = HostSamples(hosts, {}, lambda *_: None)
    monkeypatch.setattr(hosts, "clock", lambda _: None)
    samples.start()
    monkeypatch.setattr(hosts, "each", Mock(side_effect=AssertionError))
    until(lambda: samples.failure is not None)
    assert "AssertionError" in (samples.failure or "")
    samples.stop()


@pytest.mark.local
@pytest.mark.parametrize(
    ("prints", "said", "begin_s"),
    [
        ("echo Welcome to this host; cat >/dev/null", "ssh HOST true", 0.5),  # the start of an answer of 1.4 GB
        (r"printf '\0\0\0\4????'; cat >/dev/null", "version", PATIENCE_S),
    ],
)
def test_a_host_that_does_not_answer_as_one_is_lost_and_the_remedy_said(
    prints: str, said: str, begin_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEGIN_S", begin_s)
    with pytest.raises(HostLost, match=said):
        HostProcess("north", ["sh", "-c", prints], LOOPBACK, b"0123456789abcdef")


TAKEN = """
from multiprocessing.connection import Connection
Connection(0, writable=False).recv()
Connection(1, readable=False).send((1, False, OSError(98, "in use")))
"""


@pytest.mark.local
@pytest.mark.parametrize(
    ("command", "remedy"),
    [([sys.executable, "-c", TAKEN], "other run"), (["/nowhere/ssh"], "openssh-client")],
)
def test_a_host_that_cannot_begin_is_named_with_the_remedy(command: list[str], remedy: str) -> None:
    with pytest.raises(EmulationError, match=remedy) as refused:
        HostProcess("north", command, LOOPBACK, b"0123456789abcdef")
    assert refused.value.host == "north" and not isinstance(refused.value, HostLost)


@pytest.mark.pure
def test_a_host_without_a_route_to_another_says_that_it_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.scaleout.split.host.measure", lambda *_: {"south": Probed((), 250, 250)})
    monkeypatch.setattr(
        "testbed.scaleout.split.host.path_mtu",
        Mock(side_effect=OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))),
    )
    north = SimpleNamespace(_token=b"", _underlay=OWN)
    found = SplitHost.paths(north, {"south": IPv4Address("192.0.2.1")})  # type: ignore[arg-type]
    assert found == {"south": HostPath(None, 0)}
