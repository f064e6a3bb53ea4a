"""The parts that only the userspace backend has: a process that may die, and rules."""

from __future__ import annotations

import errno
import os
import signal
import statistics
import struct
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path as FilePath

import pytest

from benchmarks.support import flood
from testbed.emulation.shaping import LinkCounters, Port, ShapingError, process, userspace
from testbed.emulation.shaping.userspace import LINKS_AT_MOST, UserspaceShaper, decode, encode, moments_file
from testbed.link import MTU_FRAME_BYTES, CoDel, Delivery, GilbertElliott, LinkState, Opportunities, Queue, Red
from tests.emulation.shaping.overload import MOST_GROWTH_BYTES, overload, sink
from tests.emulation.shaping.path import PAYLOAD, TARGET, Path, burst, run
from tests.measuring import judge
from tests.waiting import stop, until

STATE = LinkState(rate_bps=50e6, delay_s=0.005)
DAWDLER = """
import sys, time
from testbed.emulation.shaping.userspace import UserspaceShaper
shaper = UserspaceShaper()
print(shaper.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.pure
def test_a_state_is_told_in_bytes_and_seconds() -> None:
    state = LinkState(rate_bps=8e6, delay_s=0.02, jitter_s=0.001, loss=0.25, queue=Queue(10, "packets"))
    assert encode(state) == "1000000.0 15140 0.02 0.001 0 0.25 1.0 0.0 1.0 0 0 0 0 0"


@pytest.mark.pure
def test_loss_in_bursts_is_told_as_its_chain() -> None:
    bursts = GilbertElliott(p=0.25, r=0.5, bad=0.75, good=0.125)
    state = LinkState(8e6, 0.02, loss=bursts.mean, bursts=bursts, reorder=True, queue=Queue(1, "packets"))
    assert encode(state) == "1000000.0 1514 0.02 0.0 1 0.125 0.75 0.25 0.5 0 0 0 0 0"


@pytest.mark.pure
def test_a_discipline_is_told_in_seconds_or_bytes() -> None:
    codel = LinkState(8e6, 0.02, queue=Queue(1e6, "bytes", CoDel(0.01, 0.2)))
    assert encode(codel).endswith(" 1 0.01 0.2 0 0")
    red = LinkState(8e6, 0.02, queue=Queue(1e6, "bytes", Red(0.125, 0.5, 0.25)))
    assert encode(red).endswith(" 2 125000.0 500000.0 0.25 0.001953125")


@pytest.mark.pure
def test_moments_are_a_file_of_64_bit_numbers() -> None:
    with moments_file(Opportunities((0, 7, 2**40))) as file:
        assert FilePath(f"/proc/self/fd/{file.fileno()}").read_bytes() == struct.pack("=3Q", 0, 7, 2**40)


def delivered(path: Path, shaper: UserspaceShaper, opportunities: Opportunities, count: int, size: int) -> list[float]:
    """Seconds from the replay's begin at which datagrams of this size, sent at once, arrive over 1 ms of delay."""
    state = LinkState(1e6, 0.001, queue=Queue(400, "packets"))
    shaper.attach({path.there: state})
    begin = 0.0

    def replay() -> None:
        nonlocal begin
        begin = time.monotonic() - 0.1
        shaper.apply({"left->right": replace(state, delivery=Delivery(opportunities, begin, "stop"))})

    arrivals = burst(path, count, size=size, ready=replay)
    wall = time.time() - time.monotonic() + begin
    return [at - wall for _, at in arrivals]


#: Two at a time each 10 ms, with a pause from 50 to 550 ms, early in which the packets come.
PAIRS = Opportunities(tuple(ms for ms in [*range(10, 51, 10), *range(550, 1000, 10)] for _ in range(2)))


@pytest.mark.physics
def test_frames_leave_at_the_moments_of_a_schedule(path: Path) -> None:
    def late_ms() -> float:
        """Return the median lateness, in ms, of the frames that waited for the pause to end."""
        with UserspaceShaper() as shaper:
            arrivals = delivered(path, shaper, PAIRS, count=40, size=PAYLOAD)
        waited = [at for at in arrivals if at > 0.3]
        assert len(arrivals) == 40 and len(waited) >= 30
        expected = [moment / 1e3 + 0.001 for moment in PAIRS.moments_ms if moment >= 550][: len(waited)]
        return 1e3 * statistics.median(abs(a - b) for a, b in zip(waited, expected, strict=True))

    judge(late_ms, 0, 2, "ms")


@pytest.mark.physics
# Of 757 bytes two fit into a moment's 1,514, and half of a moment's bytes take twice as many.
@pytest.mark.parametrize(("scale", "at_once"), [(1.0, 4), (0.5, 2)])
def test_small_packets_share_a_moment_and_large_ones_take_several(path: Path, scale: float, at_once: int) -> None:
    def together() -> float:
        """Return the number of packets that most moments let go."""
        with UserspaceShaper() as shaper:
            arrivals = delivered(path, shaper, PAIRS.scaled(scale), count=60, size=757 - 42)
        assert len(arrivals) == 60
        return statistics.mode(Counter(round(at, 2) for at in arrivals if 0.54 < at < 0.75).values())

    judge(together, at_once, at_once, "packets")


@pytest.mark.system
def test_a_rate_takes_the_place_of_a_schedule_and_gives_it_back(path: Path) -> None:
    state = LinkState(50e6, 0.001)
    delivery = Delivery(Opportunities((10**9,)), time.monotonic())
    with UserspaceShaper() as shaper:
        shaper.attach({path.there: replace(state, delivery=delivery)})
        assert path.ping(3, wait_s=0.3) == []
        shaper.apply({"left->right": state})
        assert len(path.answered(3)) == 3
        shaper.apply({"left->right": replace(state, delivery=delivery)})
        assert path.ping(3, wait_s=0.3) == []
        held = Delivery(Opportunities((1,)), time.monotonic(), "hold")
        shaper.apply({"left->right": replace(state, delivery=held)})
        assert len(path.answered(3)) == 3


@pytest.mark.system
def test_what_waits_at_the_end_of_a_schedule_that_stops_leaves_at_the_rate(path: Path) -> None:
    """A link that is down takes no more packets, and lets go those that it has."""
    with UserspaceShaper() as shaper:
        arrivals = delivered(path, shaper, Opportunities((300,)), count=40, size=PAYLOAD)
    assert [number for number, at in enumerate(arrivals) if at > 0.29] == list(range(40))


@pytest.mark.pure
@pytest.mark.parametrize("state", [LinkState(8e6, 0.02, up=False), LinkState(0, 0.02)])
def test_a_link_that_is_down_is_told_as_no_rate(state: LinkState) -> None:
    assert encode(state).startswith("0.0 ")


class AskedCore:
    """A core that only keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, commands: str) -> list[str]:
        self.asked.append(commands)
        return []


@pytest.mark.pure
@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "files"), RuntimeError("threads"), ShapingError("rules")])
def test_no_port_stays_attached_whose_rules_can_t_be_set(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise error

    core, port = AskedCore(), Port("left->right", FilePath("/proc/self/ns/net"), "right")
    monkeypatch.setattr(userspace, "CoreProcess", lambda: core)
    monkeypatch.setattr(userspace, "replace_rules", fail)
    shaper = UserspaceShaper()
    with pytest.raises(type(error)) as caught:
        shaper.attach({port: STATE})
    assert caught.value is error and core.asked == ["detach 0"]
    monkeypatch.setattr(userspace, "replace_rules", lambda _: None)
    shaper.attach({port: STATE})
    assert core.asked[-1].startswith("attach 1 ")


@pytest.mark.pure
def test_the_error_of_too_many_links_has_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    one, *more = (Port(f"left->{site}", FilePath("/proc/self/ns/net"), site) for site in ("a", "b", "c"))
    monkeypatch.setattr(userspace, "CoreProcess", AskedCore)
    monkeypatch.setattr(userspace, "replace_rules", lambda _: None)
    monkeypatch.setattr(userspace, "LINKS_AT_MOST", 2)
    shaper = UserspaceShaper()
    shaper.attach({one: STATE})
    with pytest.raises(ShapingError) as caught:
        shaper.attach(dict.fromkeys(more, STATE))
    assert (caught.value.rule, caught.value.given) == ("too-many", 3)


@pytest.mark.pure
def test_counters_are_read_in_the_order_the_core_writes_them() -> None:
    assert decode(["1", "2", "3", "4", "5", "0.5", "0.25", "6", "7"]) == LinkCounters(
        packets=1,
        bytes=2,
        dropped_queue=3,
        dropped_loss=4,
        backlog_bytes=5,
        busy_s=0.5,
        steady_s=0.25,
        steady_bytes=6,
        allowed_bytes=7,
    )


@pytest.mark.tour
@pytest.mark.system
def test_when_the_core_dies_its_links_are_dead_and_it_is_said(path: Path) -> None:
    with UserspaceShaper() as shaper:
        shaper.attach({path.there: STATE})
        assert len(path.answered(3)) == 3
        assert shaper.failure() is None
        assert shaper.realtime
        os.kill(shaper.pid, signal.SIGKILL)
        os.waitid(os.P_PID, shaper.pid, os.WEXITED | os.WNOWAIT)
        assert path.ping(3, wait_s=0.3) == []
        assert "signal 9" in str(shaper.failure())
        assert not shaper.realtime
        with pytest.raises(ShapingError):
            shaper.apply({"left->right": STATE})
    assert path.ping(3, wait_s=0.3) == []


@pytest.mark.system
def test_the_core_ends_with_the_process_that_started_it() -> None:
    with subprocess.Popen([sys.executable, "-c", DAWDLER], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        core = FilePath("/proc") / parent.stdout.readline().strip()
        try:
            until(lambda: (core / "comm").read_text() == "testbed-shaper\n")  # it was forked, but may not be it yet
        finally:
            parent.kill()
    until(lambda: not core.exists())


@pytest.mark.system
def test_an_answer_that_comes_late_is_taken_for_no_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with UserspaceShaper() as shaper:
        shaper.attach({path.there: STATE})
        with monkeypatch.context() as patch:
            patch.setattr(process, "ANSWER_TIMEOUT_S", 0.3)
            stop(shaper.pid)
            with pytest.raises(ShapingError) as caught:
                shaper.apply({"left->right": STATE})
            assert caught.value.rule == "timeout"
            with pytest.raises(ShapingError) as caught:
                shaper.applied()
            assert caught.value.rule == "timeout"
        os.kill(shaper.pid, signal.SIGCONT)
        assert set(shaper.counters()) == {"left->right"}
        assert shaper.applied() == []


@pytest.mark.physics
def test_what_a_flood_has_too_much_of_leaves_at_once(path: Path) -> None:
    """A second of 1 Gbit/s is 83,000 packets, 200 MiB of them; 32 may wait, and one is on its way."""
    seen = overload(path, seconds=1)
    assert seen.counters.dropped_queue > 10_000
    assert seen.growth_bytes < MOST_GROWTH_BYTES
    assert seen.waiting <= 33


@pytest.mark.system
def test_numbers_of_queues_are_given_out_again(path: Path) -> None:
    """More attaches than there are numbers, on one network, where another link stands all the while."""
    others = {
        Port(f"left->w{n}", path.namespace("left"), "right", address=f"10.9.{n // 256}.{n % 256}") for n in range(1000)
    }
    with UserspaceShaper() as shaper:
        shaper.attach({path.there: STATE})
        for _ in range(LINKS_AT_MOST // len(others) + 1):
            shaper.attach(dict.fromkeys(others, STATE))
            for port in others:
                shaper.detach(port.link)
        assert set(shaper.counters()) == {"left->right"}
        assert len(path.answered(3)) == 3


@pytest.mark.system
def test_a_port_stays_dead_when_another_has_its_number(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(userspace, "LINKS_AT_MOST", 1)
    other = Port("left->source", path.namespace("left"), "source")
    with UserspaceShaper() as shaper:
        shaper.attach({path.there: STATE})
        assert len(path.answered(3)) == 3
        shaper.detach("left->right")
        shaper.attach({other: STATE})
        assert path.ping(3, wait_s=0.3) == []
        assert shaper.counters()["left->source"].packets == 0
        with pytest.raises(ShapingError) as caught:
            shaper.attach({path.there: STATE})
        assert caught.value.rule == "too-many"
        shaper.detach("left->source")
        shaper.attach({path.there: STATE})
        assert path.ping(3, wait_s=0.3) == []  # the way back is dead now
        assert shaper.counters()["left->right"].packets == 3


@pytest.mark.system
def test_what_is_for_a_former_owner_of_a_number_is_not_taken(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets wait and come all the while; of each new owner's there are only its own."""
    monkeypatch.setattr(userspace, "LINKS_AT_MOST", 1)
    slow, idle = LinkState(1e6, 0.01), Port("left->source", path.namespace("left"), "source")
    stream = flood.Stream(path.namespace("source"), TARGET, 100e6)
    with UserspaceShaper() as shaper, sink(path), flood.start([stream], 250) as sending:
        try:
            for _ in range(20):
                shaper.attach({path.there: slow})
                until(lambda: shaper.counters()["left->right"].dropped_queue >= 20)
                shaper.detach("left->right")
                shaper.attach({idle: STATE})
                assert shaper.counters()["left->source"] == LinkCounters()
                shaper.detach("left->source")
        finally:
            sending.kill()


@pytest.mark.system
def test_a_namespace_is_not_kept_alive_by_a_detached_link() -> None:
    with UserspaceShaper() as shaper:
        with subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE) as holder:
            namespace = FilePath(f"/proc/{holder.pid}/ns/net")
            own = FilePath("/proc/self/ns/net").stat().st_ino
            until(lambda: namespace.stat().st_ino != own)
            inode = namespace.stat().st_ino
            shaper.attach({Port("a->b", namespace, "lo"): STATE})
            shaper.detach("a->b")
            assert holder.stdin
            holder.stdin.close()
        descriptors = FilePath(f"/proc/{shaper.pid}/fd").iterdir()
        links = [str(descriptor.readlink()) for descriptor in descriptors]
        assert f"net:[{inode}]" not in links
        assert sum("socket" in link for link in links) == 1  # only its standard input is left


@pytest.mark.system
def test_without_ipv6_nothing_goes_round_the_rules(path: Path) -> None:
    with UserspaceShaper() as shaper:
        shaper.attach({path.there: STATE})
        switch = "/proc/sys/net/ipv6/conf/right/disable_ipv6"
        if not FilePath("/proc/sys/net/ipv6/conf").is_dir():
            pytest.skip("this kernel has no IPv6")
        assert run(*path.command("left", "cat", switch)).strip() == "1"


@pytest.mark.physics
def test_two_links_of_a_bridge_are_told_apart_by_address(path: Path) -> None:
    """The target's side as a site: its router's bridge reaches two workers, each by a link of its own."""
    site, workers = "right", {"near": ("10.211.0.2", 0.01), "far": ("10.211.0.3", 0.03)}
    run(*path.command(site, "ip", "link", "add", "lan", "type", "bridge"))
    run(*path.command(site, "ip", "address", "add", "10.211.0.1/24", "dev", "lan"))
    run(*path.command(site, "ip", "link", "set", "lan", "up"))
    made = []
    try:
        with UserspaceShaper() as shaper:
            for name, (address, delay) in workers.items():
                namespace = f"{path.prefix}-{name}"
                run("ip", "netns", "add", namespace)
                made.append(namespace)
                inside = ["ip", "-n", namespace]
                peer = ["peer", "name", "eth0", "netns", namespace]
                run("ip", "-n", f"{path.prefix}-{site}", "link", "add", name, "type", "veth", *peer)
                run(*path.command(site, "ip", "link", "set", name, "master", "lan", "up"))
                run(*inside, "address", "add", f"{address}/24", "dev", "eth0")
                run(*inside, "link", "set", "eth0", "up")
                port = Port(f"{site}->{name}", path.namespace(site), name, bridge="lan", address=address)
                shaper.attach({port: LinkState(1e9, delay)})

            def round_trip_ms(node: str, to: str) -> float:
                words = ["ping", "-n", "-c", "4", "-i", "0.05", to]
                lines = run(*path.command(node, *words)).splitlines()
                return min(float(line.split("time=")[1].split()[0]) for line in lines if "time=" in line)

            # From worker to worker over the bridge alone, each way through the link of the one it is for.
            for node, to, aim_ms in ((site, "10.211.0.2", 10), (site, "10.211.0.3", 30), ("near", "10.211.0.3", 40)):
                judge(partial(round_trip_ms, node, to), aim_ms - 3, aim_ms + 3, "ms")
    finally:
        for namespace in made:
            run("ip", "netns", "delete", namespace)
        run(*path.command(site, "ip", "link", "delete", "lan"))


@pytest.mark.system
def test_a_super_packet_is_charged_for_the_headers_of_its_frames(path: Path) -> None:
    with UserspaceShaper() as shaper:
        shaper.attach({path.there: LinkState(100e6, 0.001, queue=Queue(2000, "packets"))})
        with path.server():
            run(*path.command("source", "iperf3", "--client", TARGET, "--bytes", "4M"))
        seen = shaper.counters()["left->right"]
    # One frame for a super-packet would make the mean tens of kilobytes, headers counted once 1,450 bytes.
    assert seen.packets > 1000
    assert 1500 < seen.bytes / seen.packets <= MTU_FRAME_BYTES
