"""A network over the backend that this kernel has: routes, changes, swaps and workers that come and go."""

from __future__ import annotations

import json
import math
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from testbed.emulation.links.links import Links
from testbed.emulation.links.probe import LinkFidelity, measure_links
from testbed.emulation.network.namespace import Namespace, inside
from testbed.emulation.network.network import Network
from testbed.emulation.network.node import received
from testbed.emulation.network.routing import Routes
from testbed.emulation.network.share import WHOLE
from testbed.emulation.network.wiring import needs_single_frames, send_single_frames
from testbed.emulation.process import ProcessIdentity
from testbed.emulation.shaping.base import FutureStates, ShapingError
from testbed.link import LinkState, Opportunities, Queue
from testbed.run.conclusion.verdict import RATE_TOLERANCE, RTT_TOLERANCE_S
from testbed.spec.event import LinkChange
from testbed.spec.topology import Lan, Topology
from testbed.trace.trace import Row, Trace
from tests.emulation.network.wan import Wan, up
from tests.emulation.recorder import Recorder
from tests.measuring import judge
from tests.waiting import PATIENCE_S, until

#: Round trip that the access links of two workers add: the LAN's delay up and down, there and back.
LAN_S = 4 * 0.1e-3


def topology(links: str, sites: str = "{quito: {workers: 2}, lima: {workers: 1}, cuzco: {workers: 1}}") -> Topology:
    import yaml

    value = yaml.safe_load(f"{{name: andes, sites: {sites}, links: [{links}]}}")
    return Topology.from_value(value, Path("andes.yaml"))


QUITO_LIMA = "{between: [quito, lima], rate: 20mbit, delay: 10ms}"
LIMA_CUZCO = "{between: [lima, cuzco], rate: 20mbit, delay: 15ms}"
#: Longer than by Lima, so idle until a link of those is down.
QUITO_CUZCO = "{between: [quito, cuzco], rate: 10mbit, delay: 60ms}"
TRIANGLE = topology(f"{QUITO_LIMA}, {LIMA_CUZCO}, {QUITO_CUZCO}")


@pytest.fixture(scope="module")
def still() -> Iterator[Wan]:
    """For tests that change nothing."""
    with up(TRIANGLE) as wan:
        yield wan


@pytest.mark.physics
@pytest.mark.parametrize(
    ("source", "target", "links_s"),
    [
        ("quito-w0", "lima-w0", 2 * 0.010),
        ("lima-w0", "quito-w1", 2 * 0.010),
        ("quito-w0", "cuzco-w0", 2 * (0.010 + 0.015)),
        ("quito-w0", "quito-w1", 0.0),
    ],
)
def test_a_round_trip_is_the_sum_along_the_route(still: Wan, source: str, target: str, links_s: float) -> None:
    tolerance_s = RTT_TOLERANCE_S[still.network.shaper.name]
    low_s, high_s = links_s + LAN_S - tolerance_s, links_s + LAN_S + tolerance_s
    judge(lambda: still.round_trip_s(source, target) or math.inf, low_s, high_s, "s")


@pytest.mark.system
def test_a_worker_has_one_interface_and_one_way_out(still: Wan) -> None:
    for worker in ("quito-w0", "lima-w0"):
        interfaces = json.loads(still.run(worker, "ip", "-j", "address"))
        assert {interface["ifname"] for interface in interfaces} == {"lo", "eth0"}
        addresses = [each["local"] for interface in interfaces for each in interface["addr_info"]]
        assert sorted(addresses) == sorted([still.address(worker), "127.0.0.1"]), "an IPv6 address, perhaps"
        routes = json.loads(still.run(worker, "ip", "-j", "route"))
        router = still.network.addressing.router(worker.partition("-")[0])
        assert {(route["dst"], route.get("gateway")) for route in routes} == {
            ("default", str(router.ip)),
            (str(router.network), None),
        }
        assert still.run(worker, "ip", "-6", "route") == ""


@pytest.mark.system
def test_a_worker_forgets_the_least_round_trip_of_a_network_that_was(still: Wan) -> None:
    assert still.run("quito-w0", "sysctl", "-n", "net.ipv4.tcp_min_rtt_wlen").strip() == "10"


@pytest.mark.system
def test_nothing_but_the_wan_is_within_reach(still: Wan) -> None:
    """Neither the host nor anything beyond it answers."""
    assert "unreachable" in still.run("quito-w0", "ping", "-nc", "1", "-W", "20", "192.0.2.1").lower()


@pytest.mark.system
def test_packets_without_a_route_are_counted_where_they_are_forwarded_and_where_they_begin(still: Wan) -> None:
    router = still.network.router("quito")
    for send in (still.network.container("quito-w0"), router):
        before = router.unroutable_packets()
        send.popen(
            ["ping", "-nc", "1", "-W", "1", "192.0.2.1"], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        ).wait()
        assert router.unroutable_packets() == before + 1, send.name


@pytest.mark.system
def test_every_link_was_reported_as_it_was_made(still: Wan) -> None:
    assert dict(still.states[: len(TRIANGLE.links)]) == {name: link.state for name, link in TRIANGLE.links.items()}
    assert still.network.shaper.counters().keys() >= TRIANGLE.links.keys()


@pytest.mark.physics
def test_links_are_measured_as_they_were_asked_for(still: Wan) -> None:
    """On a busy host a sender may pause for too long to tell, or a ping come late, so there are more tries."""
    backend = still.network.shaper.name
    assert_measured(still, lambda found: all(as_asked(link, backend) for link in found.values()), TRIANGLE.links)


def as_asked(link: LinkFidelity, backend: str) -> bool:
    return (
        link.rate_error is not None
        and abs(link.rate_error) <= RATE_TOLERANCE[backend] + link.rate_resolution
        and link.rtt_error_s is not None
        and abs(link.rtt_error_s) <= RTT_TOLERANCE_S[backend]
    )


def assert_measured(
    wan: Wan,
    holds: Callable[[dict[str, LinkFidelity]], bool],
    links: Collection[str],
    names: Collection[str] | None = None,
) -> None:
    """Assert that `holds` is true of one of eight measurements.

    A busy host makes a sender pause for longer than a queue lasts, or a ping come late, but not always.
    """
    for _ in range(8):
        found = measure_links(wan.network, names)
        assert found.keys() == set(links)
        if holds(found):
            return
    pytest.fail(f"after {wan.network.shaper.name} shaping: {found}")


def near(found: float | None, expected: float, by: float) -> bool:
    return found is not None and abs(found - expected) <= by


@pytest.mark.physics
def test_a_link_that_is_not_as_asked_is_found_out() -> None:
    with up(topology(f"{QUITO_LIMA}, {LIMA_CUZCO}")) as wan:
        state = wan.network.topology.links["quito->lima"].state
        wan.network.shaper.apply({"quito->lima": replace(state, rate_bps=10e6, delay_s=0.020)})

        def found_out(found: dict[str, LinkFidelity]) -> bool:
            there, back, other = (found[name] for name in ("quito->lima", "lima->quito", "lima->cuzco"))
            return (
                near(there.rate_error, -0.5, 0.05)
                and near(there.rtt_error_s, 0.010, 0.002)
                and near(back.rtt_error_s, 0.010, 0.002)  # its way back
                and near(other.rate_error, 0.0, 0.2)
            )

        assert_measured(wan, found_out, wan.network.topology.links)


@pytest.mark.physics
def test_a_dead_link_is_found_out() -> None:
    with up(topology(f"{QUITO_LIMA}, {LIMA_CUZCO}")) as wan:
        state = wan.network.topology.links["quito->lima"].state
        wan.network.shaper.apply({"quito->lima": replace(state, up=False)})
        dead = (-1, float("inf"))
        assert_measured(
            wan,
            lambda found: (found["quito->lima"].rate_error, found["quito->lima"].rtt_error_s) == dead,
            wan.network.topology.links,
        )


#: What a plain look would get wrong: few packets in its time, none at all, fewer than sent, more than can be sent.
ODD = topology(
    "{between: [quito, lima], rate: 1mbit, delay: 10ms}, "
    "{between: [lima, cuzco], rate: 20mbit, delay: 15ms, loss: 10%}, "
    "{between: [cuzco, potosi], rate: 20gbit, delay: 5ms}, "
    "{between: [potosi, sucre], rate: 20mbit, delay: 5ms, loss: 100%}, "
    "{between: [sucre, quito], rate: 20mbit, delay: 5ms, backward: {loss: 100%}}",
    "{quito: {workers: 1}, lima: {workers: 0}, cuzco: {workers: 0}, potosi: {workers: 0}, sucre: {workers: 0}}",
)


@pytest.mark.physics
def test_links_that_are_hard_to_measure_are_not_mistaken_for_wrong_ones() -> None:
    with up(ODD) as wan:
        backend = wan.network.shaper.name

        def as_far_as_can_be_told(found: dict[str, LinkFidelity]) -> bool:
            for name in ("potosi->sucre", "sucre->potosi", "quito->sucre"):
                assert (found[name].rate_error, found[name].rtt_error_s) == (None, None)
            assert found["sucre->quito"].rtt_error_s is None
            assert found["cuzco->potosi"].rate_error is None, "no sender fills that"
            told = {name: found[name] for name in ("quito->lima", "lima->quito", "lima->cuzco", "cuzco->lima")}
            # Its way back passes nothing, so there is no round trip to judge.
            told["sucre->quito"] = replace(found["sucre->quito"], rtt_error_s=0.0)
            resolution = found["quito->lima"].rate_resolution  # less fine where a look took long
            return all(as_asked(link, backend) for link in told.values()) and resolution == pytest.approx(
                1514 * 8 / 1e6 / 3, rel=0.1
            )

        assert_measured(wan, as_far_as_can_be_told, ODD.links)


@pytest.mark.physics
def test_a_slow_link_that_is_not_as_asked_is_found_out_among_those_named() -> None:
    with up(topology("{between: [quito, lima], rate: 1mbit, delay: 10ms}, " + LIMA_CUZCO)) as wan:
        state = wan.network.topology.links["quito->lima"].state
        wan.network.shaper.apply({"quito->lima": replace(state, rate_bps=0.95e6)})
        names = ["quito->lima"]
        assert_measured(wan, lambda found: near(found["quito->lima"].rate_error, -0.05, 0.01), names, names)


@pytest.mark.tour
@pytest.mark.system
def test_traffic_goes_another_way_while_a_link_is_down_and_comes_back() -> None:
    with up(TRIANGLE) as wan:
        wan.network.take("quito", "lima", up=False)
        wan.assert_answered("quito-w0", "lima-w0", 2 * (0.060 + 0.015) + LAN_S)
        wan.network.take("cuzco", "quito", up=False)
        assert wan.round_trip_s("quito-w0", "lima-w0", count=2, wait_s=1) is None
        assert wan.round_trip_s("lima-w0", "cuzco-w0") is not None
        assert not wan.network.routes.reach("quito", "lima")
        wan.network.take("quito", "lima", up=True)
        wan.assert_answered("quito-w0", "lima-w0", 2 * 0.010 + LAN_S)
        wan.assert_answered("quito-w0", "cuzco-w0", 2 * (0.010 + 0.015) + LAN_S)
        assert not dict(wan.states)["cuzco->quito"].up
        assert dict(wan.states)["lima->quito"].up


@pytest.mark.local
def test_no_route_leads_over_either_of_two_pairs_that_two_threads_take_down_at_once() -> None:
    links, routed = Links(Recorder(), lambda *_: None), list[Routes]()
    for link in TRIANGLE.links.values():
        links.add(link)
    network: Any = SimpleNamespace(share=WHOLE, links_in_force=links, topology=TRIANGLE, _rerouting=threading.Lock())
    other = threading.Thread(target=Network.take, args=(network, "quito", "lima", False))

    def set_routes(routes: Routes) -> None:
        if other.ident is None:  # the first routes, which are computed before the other pair goes down
            other.start()
            other.join(0.2)  # without the lock, the other thread's routes are set within this time
        routed.append(routes)

    network.set_routes, network.reroute = set_routes, lambda: Network.reroute(network)
    Network.take(network, "lima", "cuzco", False)
    other.join()
    assert len(links.down) == 4
    assert routed == [Routes.over(TRIANGLE, {"lima->cuzco", "cuzco->lima"}), Routes.over(TRIANGLE, links.down)]


@contextmanager
def connection(wan: Wan, source: str, target: str) -> Iterator[Callable[[bytes], None]]:
    """Open a TCP connection, and yield a function that sends bytes over it and waits until all have arrived."""
    address = (wan.address(target), 7000)
    listener = inside(wan.network.container(target).netns, lambda: socket.create_server(address))
    client = inside(wan.network.container(source).netns, lambda: socket.create_connection(address, timeout=PATIENCE_S))
    server, _ = listener.accept()
    server.settimeout(PATIENCE_S)

    def send(content: bytes) -> None:
        sender = threading.Thread(target=client.sendall, args=(content,))
        sender.start()
        got = b""
        while len(got) < len(content):
            got += server.recv(1 << 16)
        sender.join()
        assert got == content

    with listener, client, server:
        yield send


def super_packets(wan: Wan, source: str, target: str) -> bool:
    """Return whether some packets of a worker's TCP connection reach its router as super-packets of several frames."""
    router = wan.network.router(source.partition("-")[0])
    server = wan.network.container(target).popen(["iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
    while "5201" not in wan.run(target, "ss", "-Hltn"):
        pass
    before = received(router.pid)["w0"]
    wan.run(source, "iperf3", "-c", wan.address(target), "-n", "2M")
    server.wait()
    size, packets = (b - a for a, b in zip(before, received(router.pid)["w0"], strict=True))
    assert size > 100_000
    features = wan.run(source, "ethtool", "-k", "eth0")
    ways = "tcp-segmentation-offload|generic-segmentation-offload|tx-udp-segmentation"
    states = set(re.findall(rf"(?:{ways}): (\w+)", features))
    assert states == {"on" if wan.network.offload else "off"}
    return size / packets > 1514


LOSSY = "{between: [quito, lima], rate: 20mbit, delay: 10ms, loss: 1%}"


@pytest.mark.system
def test_workers_send_super_packets_unless_a_link_would_lose_them_whole() -> None:
    sites = "{quito: {workers: 1}, lima: {workers: 1}}"
    with up(topology(QUITO_LIMA, sites)) as wan:
        assert wan.network.offload
        assert super_packets(wan, "quito-w0", "lima-w0")
        wan.network.swap(topology(LOSSY, sites))
        assert not wan.network.offload
        assert not super_packets(wan, "quito-w0", "lima-w0")
    with up(topology(LOSSY, sites)) as wan:
        assert not wan.network.offload
        assert not super_packets(wan, "quito-w0", "lima-w0")


@pytest.mark.system
def test_a_link_that_comes_to_lose_ends_super_packets_too() -> None:
    with up(topology(QUITO_LIMA, "{quito: {workers: 1}, lima: {workers: 1}}")) as wan:
        wan.network.links_in_force.change(LinkChange.model_validate({"link": "lima->quito", "delay": "20ms"}))
        assert wan.network.offload
        wan.network.links_in_force.change(LinkChange.model_validate({"link": "lima->quito", "loss": "1%"}))
        assert not wan.network.offload
        assert not super_packets(wan, "quito-w0", "lima-w0")


@contextmanager
def replaceable(wan: Wan, worker: str) -> Iterator[subprocess.Popen[bytes]]:
    """Put a process that may end in a worker's place on the network, and yield the process."""
    namespace = Namespace()
    process = inside(namespace.path, lambda: subprocess.Popen(["sleep", "600"]))
    namespace.close()
    try:
        holder = ProcessIdentity.of(process.pid)
        assert holder is not None
        wan.network.leave([worker])
        wan.network.join({worker: holder})
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.system
@pytest.mark.parametrize("noticed", [True, False])
def test_a_worker_that_has_ended_keeps_no_other_from_single_frames(
    noticed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with up(topology(QUITO_LIMA, "{quito: {workers: 1}, lima: {workers: 1}}")) as wan:
        with replaceable(wan, "quito-w0"):
            there = wan.network._workers_there()
        if not noticed:  # as where it ends just then
            monkeypatch.setattr(wan.network, "_workers_there", lambda: there)
        wan.network.links_in_force.change(LinkChange.model_validate({"link": "lima->quito", "loss": "1%"}))
        assert "tcp-segmentation-offload: off" in wan.run("lima-w0", "ethtool", "-k", "eth0")


@pytest.mark.system
def test_a_process_that_was_given_a_worker_s_number_is_left_alone() -> None:
    with up(topology(QUITO_LIMA, "{quito: {workers: 1}, lima: {workers: 1}}")) as wan, replaceable(wan, "quito-w0"):
        host = wan.network.container("quito-w0")
        # It was another's, that started earlier.
        host.holder = replace(host.holder, start_ticks=host.holder.start_ticks - 1)
        assert host not in wan.network._workers_there()
        for ask in (send_single_frames, wan.network.transport.fit):
            with suppress(ProcessLookupError):
                ask(host)
        assert "tcp-segmentation-offload: on" in wan.run("quito-w0", "ethtool", "-k", "eth0")
        assert wan.network.transport.refused == {}


@pytest.mark.system
@pytest.mark.parametrize(
    ("changed", "needed"),
    [
        ({}, False),
        ({"state": LinkState(1e6, 0.01, loss=0.01)}, True),
        ({"state": LinkState(1e6, 0.01, queue=Queue(40, "packets"))}, True),
        ({"state": LinkState(1e6, 0.01, queue=Queue(40_000, "bytes"))}, False),
        ({"trace": Trace((Row(0, 1e6), Row(1, 2e6)))}, False),
        ({"trace": Trace((Row(0, 1e6), Row(1, 2e6, loss=0.01)))}, True),
        ({"trace": Trace((Row(0, 1e6),), opportunities=Opportunities((1, 2)))}, True),
    ],
)
def test_single_frames_are_for_loss_and_queues_of_packets(changed: dict[str, Any], needed: bool) -> None:
    link = replace(TRIANGLE.links["quito->lima"], **changed)
    assert needs_single_frames(link) == needed


@pytest.mark.pure
def test_a_jitter_that_a_trace_gives_later_is_refused_as_that_of_the_file() -> None:
    shaper = Recorder()
    shaper.most_jitter_s = 2.0
    network = SimpleNamespace(shaper=shaper)
    Network.check_links(network, TRIANGLE)  # type: ignore[arg-type]
    link, rows = TRIANGLE.links["quito->lima"], (Row(0, 1e6), Row(1, 2e6, jitter_s=3.0))
    for one in (replace(link, trace=Trace(rows)), replace(link, state=replace(link.state, jitter_s=3.0))):
        with pytest.raises(ShapingError) as refused:
            Network.check_links(network, SimpleNamespace(links={one.name: one}))  # type: ignore[arg-type]
        assert (refused.value.rule, refused.value.link) == ("jitter", "quito->lima")


@pytest.mark.pure
def test_a_trace_that_dips_lower_than_the_shaper_can_follow_is_refused() -> None:
    shaper = Recorder()
    shaper.least_row_bps = 12e3
    network, link = SimpleNamespace(shaper=shaper), TRIANGLE.links["quito->lima"]
    for rows in ((Row(0, 5e3),), (Row(0, 12e3), Row(1, 1e6)), (Row(0, 1e6), Row(1, 2e6, loss=1.0))):
        one = replace(link, trace=Trace(rows))
        Network.check_links(network, SimpleNamespace(links={one.name: one}))  # type: ignore[arg-type]
    dips = replace(link, trace=Trace((Row(0, 1e6), Row(1, 5e3))))
    with pytest.raises(ShapingError, match="loss of 100 %") as refused:
        Network.check_links(network, SimpleNamespace(links={dips.name: dips}))  # type: ignore[arg-type]
    assert (refused.value.rule, refused.value.link) == ("rate", "quito->lima")


class Detaching(Recorder):
    """Shapes two links. While one is detached, `meanwhile` is called with its name, as another thread could."""

    def __init__(self) -> None:
        super().__init__()
        self.attached = {"quito->lima", "lima->quito"}
        self.meanwhile: Callable[[str], None] = lambda _: None

    def expect(self, coming: Mapping[str, FutureStates]) -> None:
        if unknown := coming.keys() - self.attached:
            raise KeyError(*unknown)
        super().expect(coming)

    def detach(self, link: str) -> None:
        self.attached.remove(link)
        self.meanwhile(link)


@pytest.mark.local
def test_a_replay_may_hand_over_rows_while_a_pair_is_removed() -> None:
    shaper, rows = Detaching(), (Row(0, 1e6), Row(1, 2e6))
    links = Links(shaper, lambda *_: None)
    for name in shaper.attached:
        links.add(replace(TRIANGLE.links[name], trace=Trace(rows)))
    shaper.meanwhile = lambda link: links.replay({link: [(1.0, rows[1])]})
    pair = frozenset({"quito", "lima"})
    network = SimpleNamespace(share=WHOLE, links_in_force=links, shaper=shaper, pairs={pair: MagicMock()})
    Network.remove_pair(network, pair)  # type: ignore[arg-type]
    assert (links.states(), shaper.attached) == ({}, set())


@pytest.mark.local
def test_a_pair_whose_removal_failed_is_removed_when_it_is_tried_again() -> None:
    def fail(_: str) -> None:
        raise ShapingError("on purpose")

    shaper = Detaching()
    links = Links(shaper, lambda *_: None)
    for name in shaper.attached:
        links.add(TRIANGLE.links[name])
    pair, wire = frozenset({"quito", "lima"}), MagicMock()
    network = SimpleNamespace(share=WHOLE, links_in_force=links, shaper=shaper, pairs={pair: wire})
    shaper.meanwhile = fail
    with pytest.raises(ShapingError):
        Network.remove_pair(network, pair)  # type: ignore[arg-type]
    shaper.meanwhile, shaper.attached = lambda _: None, {"quito->lima", "lima->quito"}
    Network.remove_pair(network, pair)  # type: ignore[arg-type]
    assert (network.pairs, links.states(), shaper.attached) == ({}, {}, set())
    wire.delete.assert_called_once_with()


def interfaces(wan: Wan, site: str) -> set[str]:
    return set(wan.network.router(site).received_bytes())


@pytest.mark.tour
@pytest.mark.system
def test_a_swap_touches_only_what_differs() -> None:
    after = topology(
        f"{QUITO_LIMA}, {LIMA_CUZCO.replace('15ms', '25ms')}, "
        "{between: [quito, potosi], rate: 20mbit, delay: 5ms}, {between: [potosi, cuzco], rate: 20mbit, delay: 5ms}",
        "{quito: {workers: 2}, lima: {workers: 1}, cuzco: {workers: 1}, potosi: {workers: 0}}",
    )
    with up(TRIANGLE) as wan, connection(wan, "quito-w0", "lima-w0") as send:
        send(bytes(100_000))
        before = wan.network.shaper.counters()
        kept = wan.network.router("quito").netlink.index("lima")

        swap = wan.network.swap(after)

        assert set(swap.removed) == {"quito->cuzco", "cuzco->quito"}
        assert set(swap.added) == {"quito->potosi", "potosi->quito", "potosi->cuzco", "cuzco->potosi"}
        assert set(swap.changed) == {"lima->cuzco", "cuzco->lima"}
        send(bytes(100_000))  # over the connection that was there, by a link that stayed
        now = wan.network.shaper.counters()
        assert wan.network.router("quito").netlink.index("lima") == kept
        assert before["quito->lima"].bytes >= 100_000
        assert now["quito->lima"].bytes >= before["quito->lima"].bytes + 100_000
        assert now["lima->cuzco"].packets >= before["lima->cuzco"].packets

        assert interfaces(wan, "quito") == {"lo", "lan", "w0", "w1", "lima", "potosi"}
        assert interfaces(wan, "cuzco") == {"lo", "lan", "w0", "lima", "potosi"}
        assert not {"quito->cuzco", "cuzco->quito"} & now.keys()
        # By the new site that has no workers: its links are shaped, and it forwards.
        wan.assert_answered("quito-w0", "cuzco-w0", 2 * (0.005 + 0.005) + LAN_S)
        wan.network.take("quito", "potosi", up=False)
        wan.assert_answered("quito-w0", "cuzco-w0", 2 * (0.010 + 0.025) + LAN_S)


@pytest.mark.system
def test_a_swap_back_restores_what_was() -> None:
    line = topology(f"{QUITO_LIMA}, {LIMA_CUZCO}")
    with up(TRIANGLE) as wan:
        wan.network.swap(line)
        wan.network.take("lima", "cuzco", up=False)
        assert wan.round_trip_s("quito-w0", "cuzco-w0", count=2, wait_s=1) is None
        wan.network.swap(TRIANGLE)
        wan.assert_answered("quito-w0", "cuzco-w0", 2 * 0.060 + LAN_S)  # what was down is down still
        wan.network.take("lima", "cuzco", up=True)
        wan.assert_answered("quito-w0", "cuzco-w0", 2 * (0.010 + 0.015) + LAN_S)


@pytest.mark.system
def test_a_site_without_workers_can_be_swapped_away() -> None:
    sites = "{quito: {workers: 1}, lima: {workers: 1}, potosi: {workers: 0}}"
    potosi = "{between: [quito, potosi], rate: 20mbit, delay: 5ms}, {between: [potosi, lima], rate: 20mbit, delay: 5ms}"
    with up(topology(potosi, sites)) as wan:
        wan.assert_answered("quito-w0", "lima-w0", 2 * 0.010 + LAN_S)
        gone = wan.network.router("potosi").pid
        wan.network.swap(topology(QUITO_LIMA, "{quito: {workers: 1}, lima: {workers: 1}}"))
        wan.assert_answered("quito-w0", "lima-w0", 2 * 0.010 + LAN_S)
        until(lambda: not Path(f"/proc/{gone}").exists())  # the kernel's thread ends a moment after Python's
        assert interfaces(wan, "quito") == {"lo", "lan", "w0", "lima"}


@pytest.mark.system
def test_a_swap_to_other_workers_is_refused_and_touches_nothing() -> None:
    other = topology(f"{QUITO_LIMA}", "{quito: {workers: 1}, lima: {workers: 1}}")
    with up(TRIANGLE) as wan:
        with pytest.raises(ValueError):
            wan.network.swap(other)
        wan.assert_answered("quito-w0", "lima-w0", 2 * 0.010 + LAN_S)


@pytest.mark.tour
@pytest.mark.system
def test_a_swap_that_fails_before_anything_is_removed_is_undone() -> None:
    """When all is built and the links are about to change; a second time it goes through."""
    after = topology(
        f"{QUITO_LIMA}, {{between: [lima, cuzco], rate: 5mbit, delay: 30ms}}, "
        "{between: [cuzco, potosi], rate: 20mbit, delay: 5ms}",
        "{quito: {workers: 2}, lima: {workers: 1}, cuzco: {workers: 1}, potosi: {workers: 0}}",
    )

    def fail(_: set[str]) -> None:
        raise RuntimeError("on purpose")

    with up(TRIANGLE) as wan:
        network = wan.network
        hosts, states, routes = [host.name for host in network.hosts], network.links_in_force.states(), network.routes
        with pytest.raises(RuntimeError, match="on purpose"):
            network.swap(after, fail)
        assert network.topology is TRIANGLE
        assert [host.name for host in network.hosts] == hosts
        assert network.links_in_force.states() == states
        assert "potosi->cuzco" not in network.shaper.counters()
        assert network.routes == routes
        wan.assert_answered("quito-w0", "cuzco-w0", 2 * (0.010 + 0.015) + LAN_S)
        network.swap(after)
        wan.assert_answered("quito-w0", "cuzco-w0", 2 * (0.010 + 0.030) + LAN_S)


@pytest.mark.system
def test_a_swap_brings_and_takes_workers_and_changes_the_lan() -> None:
    sites = "{quito: {workers: 1}, lima: {workers: 2}, potosi: {workers: 1}}"
    potosi = "{between: [lima, potosi], rate: 20mbit, delay: 5ms}"
    other = replace(
        topology(f"{QUITO_LIMA}, {potosi}", sites), lan=Lan.model_validate({"rate": "10mbit", "delay": "2ms"})
    )
    new = {name: Namespace() for name in ("lima-w1", "potosi-w0")}
    with ExitStack() as stack:
        for holder in new.values():
            stack.callback(holder.close)
        wan = stack.enter_context(up(TRIANGLE))
        send = stack.enter_context(connection(wan, "quito-w0", "lima-w0"))
        send(b"before")
        wan.network.swap(other, holders={name: holder.holder for name, holder in new.items()})
        send(b"after")
        assert interfaces(wan, "quito") == {"lo", "lan", "w0", "lima"}
        assert interfaces(wan, "lima") == {"lo", "lan", "w0", "w1", "quito", "potosi"}
        assert {host.name for host in wan.network.hosts} == {
            *("quito-r", "lima-r", "potosi-r"),
            *("quito-w0", "lima-w0", "lima-w1", "potosi-w0"),
        }
        wan.assert_answered("quito-w0", "potosi-w0", 2 * (0.010 + 0.005) + 4 * 0.002)
        wan.assert_answered("lima-w0", "lima-w1", 4 * 0.002)
        card = json.loads(wan.run("quito-w0", "tc", "-j", "qdisc", "show", "dev", "eth0"))
        assert card[0]["options"]["rate"] == 10e6 / 8


@pytest.mark.system
def test_one_site_alone_is_a_network_too() -> None:
    with up(topology("", "{quito: {workers: 2}}")) as wan:
        wan.assert_answered("quito-w0", "quito-w1", LAN_S)
        assert measure_links(wan.network) == {}


def namespaces_in_use() -> set[str]:
    """Return the network namespace of every thread of every process."""
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):  # it ended just now
                for thread in (process / "task").iterdir():
                    with suppress(OSError):
                        found.add(str((thread / "ns/net").readlink()))
    return found


@pytest.mark.system
def test_nothing_is_left() -> None:
    with up(TRIANGLE) as wan:
        nodes = [*map(wan.network.router, TRIANGLE.sites), *(wan.network.container(w.name) for w in TRIANGLE.workers)]
        ours = {str(node.netns.readlink()) for node in nodes}
        wan.network.router("quito").cmd("ip link")  # also Mininet's shell must go
        assert ours <= namespaces_in_use()
        here = {name for _, name in socket.if_nameindex()}
        assert not here & {"quito", "lima", "cuzco", "lan", "w0"}, "an interface in the host's own namespace"
    until(lambda: not ours & namespaces_in_use())  # the kernel's threads end a moment after Python's
    assert not {name for _, name in socket.if_nameindex()} & {"quito", "lima", "cuzco", "lan", "w0"}
