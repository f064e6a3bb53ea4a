from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.trace.forms.ping import parse_ping
from testbed.trace.trace import TraceError

pytestmark = pytest.mark.pure

LINUX = """\
PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data.
64 bytes from 10.0.0.2: icmp_seq=2 ttl=54 time=42.1 ms
64 bytes from lima.example (10.0.0.2): icmp_seq=4 ttl=54 time=41 ms (DUP!)
64 bytes from lima.example (10.0.0.2): icmp_seq=4 ttl=54 time=40 ms
From 10.0.0.1 icmp_seq=5 Destination Host Unreachable

--- 10.0.0.2 ping statistics ---
6 packets transmitted, 2 received, +1 duplicates, 66.6667% packet loss, time 1000ms
rtt min/avg/max/mdev = 40.0/41.0/42.1/0.5 ms
"""
STAMPED = """\
[1700000000.100000] 64 bytes from 10.0.0.2: icmp_seq=1 ttl=54 time=41 ms
[1700000000.300000] no answer yet for icmp_seq=2
[1700000000.500000] 64 bytes from 10.0.0.2: icmp_seq=3 ttl=54 time=41 ms
[1700000000.700000] 64 bytes from 10.0.0.2: icmp_seq=4 ttl=54 time=41 ms
[1700000000.900000] no answer yet for icmp_seq=5
"""
MACOS = """\
PING 10.0.0.2 (10.0.0.2): 56 data bytes
64 bytes from 10.0.0.2: icmp_seq=0 ttl=57 time=14.204 ms
Request timeout for icmp_seq 1
64 bytes from 10.0.0.2: icmp_seq=2 ttl=57 time=15.1 ms
--- 10.0.0.2 ping statistics ---
3 packets transmitted, 2 packets received, 33.3% packet loss
"""
BUSYBOX = """\
PING 10.0.0.2 (10.0.0.2): 56 data bytes
64 bytes from 10.0.0.2: seq=0 ttl=64 time=0.051 ms
64 bytes from 10.0.0.2: seq=1 ttl=64 time=0.062 ms
"""
IPV6 = "64 bytes from 2001:db8::2: icmp_seq=1 hlim=57 time=9.5 ms"

Samples = list[tuple[float, float | None]]


@pytest.mark.parametrize(
    ("text", "samples"),
    [
        (LINUX, [(0, None), (0.2, 0.0421), (0.4, None), (0.6, 0.04), (0.8, None), (1, None)]),
        (STAMPED, [(0, 0.041), (0.2, None), (0.4, 0.041), (0.6, 0.041), (0.8, None)]),
        (MACOS, [(0, 0.014204), (1, None), (2, 0.0151)]),
        (BUSYBOX, [(0, 51e-6), (1, 62e-6)]),
        (IPV6, [(0, 0.0095)]),
    ],
    ids=["linux", "stamped", "macos", "busybox", "ipv6"],
)
def test_each_ping_s_output(text: str, samples: Samples) -> None:
    found = parse_ping(text.splitlines())
    assert [time_s for time_s, _ in found] == pytest.approx([time_s for time_s, _ in samples], abs=1e-6)
    assert [trip for _, trip in found] == pytest.approx([trip for _, trip in samples])


def reply(sequence: int, trip_ms: float = 5.0) -> str:
    return f"64 bytes from 10.0.0.2: icmp_seq={sequence} ttl=54 time={trip_ms} ms"


def test_numbers_begin_again_after_65535() -> None:
    found = parse_ping([reply(n % 65536) for n in range(65_530, 65_545) if n != 65_536])
    assert [trip is None for _, trip in found] == [n == 65_536 for n in range(65_530, 65_545)]


def test_a_number_that_comes_late_is_in_its_place() -> None:
    assert [trip for _, trip in parse_ping([reply(1, 1), reply(3, 3), reply(2, 2)])] == [0.001, 0.002, 0.003]


def test_replies_out_of_order_are_at_the_time_when_they_were_asked_for() -> None:
    lines = [f"[1700000000.05] {reply(1, 50)}", f"[1700000000.11] {reply(3, 90)}", f"[1700000000.12] {reply(2, 110)}"]
    assert [time_s for time_s, _ in parse_ping(lines)] == pytest.approx([0, 0.01, 0.02], abs=1e-6)


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("", ("no-reply", None)),
        ("Reply from 10.0.0.2: bytes=32 time=12ms TTL=57", ("windows", None)),
        ("no answer yet for icmp_seq=1\nno answer yet for icmp_seq=2", ("no-reply", None)),
        (reply(1).replace("5.0", "5.0.0"), ("range", 1)),
        (reply(1).replace("5.0", "999999"), ("range", 1)),
        (reply(1).replace("ms", "furlongs"), ("range", 1)),
        ("8 bytes from 10.0.0.2: icmp_seq=1 ttl=64", ("no-time", 1)),
        (f"{reply(1)}\n999999999 packets transmitted, 1 received", ("too-many", None)),
        (f"[1700000002.0] {reply(1)}\n[1700000000.0] {reply(2)}", ("order", None)),
        (f"{LINUX}{LINUX}", ("two-runs", 10)),
        (f"{BUSYBOX}{BUSYBOX}", ("two-runs", 4)),
    ],
)
def test_what_breaks_the_form_is_named(text: str, broken: tuple[str, int | None]) -> None:
    with pytest.raises(TraceError) as caught:
        parse_ping(text.splitlines())
    assert (caught.value.rule, caught.value.line) == broken


LANGUAGES = {
    "de": (
        "64 Bytes von 10.0.0.2: icmp_seq={} ttl=54 Zeit={} ms",
        "Von 10.0.0.1 icmp_seq={} Zielhost nicht erreichbar",
        "3 Pakete übertragen, 2 empfangen, 33,3333% Paketverlust, Zeit 400ms",
    ),
    "fr": (
        "64 octets de 10.0.0.2 : icmp_seq={} ttl=54 temps={} ms",
        "De 10.0.0.1 icmp_seq={} Hôte de destination injoignable",
        "3 paquets transmis, 2 reçus, 33,3333 % paquets perdus, time 400 ms",
    ),
    "es": (
        "64 bytes desde 10.0.0.2: icmp_seq={} ttl=54 tiempo={} ms",
        "no hay respuesta para icmp_seq={}",
        "3 paquetes transmitidos, 2 recibidos, 33.3333% packet loss, time 400ms",
    ),
    "ru": (
        "64 байт от 10.0.0.2: icmp_seq={} ttl=54 время={} мс",
        "ответа пока нет icmp_seq={}",
        "3 пакетов передано, 2 получено, 33,3333% потерь, время 400мс",
    ),
    "ja": (
        "64 バイト応答 送信元 10.0.0.2: icmp_seq={} ttl=54 時間={}ミリ秒",
        "送信元 10.0.0.1 icmp_seq={} あて先ホストに到達できません",
        "送信パケット数 3, 受信パケット数 2, 33.3333% packet loss, time 400ms",
    ),
    "zh": (
        "来自 10.0.0.2 的 64 字节：icmp_seq={} ttl=54 时间={} 毫秒",
        "来自 10.0.0.1 icmp_seq={} 目标主机不可达",
        "已发送 3 个包， 已接收 2 个包, 33.3333% 包丢失, 耗时 400 毫秒",
    ),
}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("sign", [".", ","])
def test_ping_is_read_in_the_user_s_language(language: str, sign: str) -> None:
    answer, lost, summary = LANGUAGES[language]
    lines = [answer.format(1, f"42{sign}1"), lost.format(2), answer.format(3, f"0{sign}125"), "", summary]
    found = parse_ping(lines)
    assert [trip for _, trip in found] == [pytest.approx(0.0421), None, pytest.approx(0.000125)]
    assert [time_s for time_s, _ in found] == pytest.approx([0, 0.2, 0.4])


@given(st.lists(st.none() | st.integers(1, 9000), min_size=1, max_size=50), st.booleans())
def test_what_ping_prints_is_what_was_sent(trips: list[int | None], stamped: bool) -> None:
    """One packet every 200 ms."""
    lines = []
    for number, trip in enumerate(trips, 1):
        stamp = f"[{1_700_000_000 + number / 5 + (trip or 0) / 1e3:.6f}] " if stamped else ""
        lines.append(f"{stamp}no answer yet for icmp_seq={number}" if trip is None else stamp + reply(number, trip))
    lines.append(f"{len(trips)} packets transmitted, 0 received, 0% packet loss, time {200 * (len(trips) - 1)}ms")
    if all(trip is None for trip in trips):
        return
    found = parse_ping(lines)
    assert [trip for _, trip in found] == [None if trip is None else pytest.approx(trip / 1e3) for trip in trips]
    assert [time_s for time_s, _ in found] == pytest.approx([i / 5 for i in range(len(trips))], abs=1e-5)
