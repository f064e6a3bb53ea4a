from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.trace.forms.iperf3 import parse_iperf3, resampled
from testbed.trace.trace import TraceError

pytestmark = pytest.mark.pure


def interval(start: Any, end: Any, bytes_: Any, **more: Any) -> dict[str, Any]:
    return {"streams": [], "sum": {"start": start, "end": end, "bytes": bytes_, "omitted": False, **more}}


def document(*intervals: Any, protocol: str = "TCP", **more: Any) -> dict[str, Any]:
    return {"start": start(protocol), "intervals": list(intervals), **more}


def start(protocol: str = "TCP", length: int = 1448, **more: Any) -> dict[str, Any]:
    return {"version": "iperf 3.12", "test_start": {"protocol": protocol, "num_streams": 1, "blksize": length}, **more}


STEADY = document(interval(0, 1.00004, 1_448_000), interval(1.00004, 2.00001, 2_896_000), interval(2.00001, 3, 724_000))


def test_bytes_that_programs_got_become_frames() -> None:
    assert parse_iperf3(json.dumps(STEADY)).total == pytest.approx((0, 1_514_000, 4_542_000, 5_299_000))


@pytest.mark.parametrize(("length", "frames"), [(1000, 1042), (1472, 1514), (1473, 1549), (8000, 8212)])
def test_a_datagram_is_as_many_frames_as_it_has_fragments(length: int, frames: int) -> None:
    udp = document(interval(0, 1, 1_448_000, sender=False)) | {"start": start("UDP", length)}
    assert parse_iperf3(json.dumps(udp)).total[1] == pytest.approx(1_448_000 * frames / length)


def test_without_a_step_a_row_is_an_interval() -> None:
    found = resampled(parse_iperf3(json.dumps(STEADY)))
    assert found.step_s == 1
    assert [row.time_s for row in found.trace.rows] == [0, 1, 2]
    assert [row.rate_bps for row in found.trace.rows] == pytest.approx([12.112e6, 24.224e6, 6.056e6], rel=1e-3)
    assert found.drift == pytest.approx(0, abs=1e-12)


def test_omitted_intervals_are_not_part_of_it() -> None:
    warm = document(interval(0, 1, 9e9, omitted=True), interval(1, 2, 1_448_000), interval(2, 3, 1_448_000))
    volume = parse_iperf3(json.dumps(warm))
    assert volume.edges_s == (0, 1, 2)
    assert volume.total[-1] == pytest.approx(3_028_000)


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("", ("json", None)),
        ('{"a": 1}\n{"b": 2}', ("json", None)),
        ("[1]", ("json", None)),
        ("[" * 100_000, ("json", None)),
        ("9" * 5000, ("json", None)),
        ('{"error": "unable to connect to server"}', ("failed", None)),
        ("{}", ("missing", "intervals")),
        (document(), ("missing", "intervals")),
        (document(3), ("missing", "intervals.0.sum")),
        (document({"sum": []}), ("missing", "intervals.0.sum")),
        (document(interval(0, "1", 1)), ("number", "intervals.0.sum.end")),
        (document(interval(0, True, 1)), ("number", "intervals.0.sum.end")),
        (document(interval(0, 1, -1)), ("range", "intervals.0.sum.bytes")),
        (document(interval(0, 1, float("nan"))), ("range", "intervals.0.sum.bytes")),
        (document(interval(0, 1, 10**400)), ("range", "intervals.0.sum.bytes")),
        (document(interval(0, 1e6, 1)), ("range", "intervals.0.sum.end")),
        (document(interval(0, 1, 1), interval(1, 1, 1)), ("order", "intervals.1.sum.end")),
        (document(interval(0, 1, 1, omitted=True)), ("omitted", "intervals")),
        (
            document(interval(0, 1, 1), start={"test_start": {"protocol": "UDP"}}),
            ("number", "start.test_start.blksize"),
        ),
        (
            document(interval(0, 1, 1), start={"test_start": {"protocol": "UDP", "blksize": 0}}),
            ("range", "start.test_start.blksize"),
        ),
    ],
)
def test_a_broken_rule_is_named_with_its_place(text: Any, broken: tuple[str | None, str | None]) -> None:
    with pytest.raises(TraceError) as caught:
        parse_iperf3(text if isinstance(text, str) else json.dumps(text))
    assert (caught.value.rule, caught.value.field) == broken


def of_end(sent: int, arrived: int, protocol: str) -> dict[str, Any]:
    """Return the end of a sender's file."""
    sums = {"sum_sent": {"bytes": sent * 1448}, "sum_received": {"bytes": arrived * 1448}}
    return {"sum": {"packets": sent, "lost_packets": sent - arrived}, **sums} if protocol == "UDP" else sums


@pytest.mark.parametrize("protocol", ["UDP", "TCP"])
@pytest.mark.parametrize("flag", [{"sender": True}, {}])
def test_a_sender_s_intervals_count_where_as_much_arrived(protocol: str, flag: dict[str, Any]) -> None:
    def file(arrived: int, **more: Any) -> str:
        begin = {"start": start(protocol, connecting_to={"host": "a"}), "end": of_end(1000, arrived, protocol)}
        return json.dumps(document(interval(0, 1, 1_448_000, **flag), **begin, **more))

    assert parse_iperf3(file(995)).total == pytest.approx(parse_iperf3(file(1000)).total)
    for arrived, said in ((500, "50.0%"), (985, "98.5%"), (20, "2.0%")):
        with pytest.raises(TraceError) as caught:
            parse_iperf3(file(arrived))
        assert (caught.value.rule, caught.value.field) == ("sender", "intervals")
        assert said in str(caught.value)
    received = document(interval(0, 1, 28_960, sender=False, lost_packets=980), protocol=protocol)
    alone = parse_iperf3(json.dumps(received))
    assert parse_iperf3(file(20, server_output_json=received)).total == alone.total


def test_a_udp_sender_s_intervals_without_an_end_are_refused() -> None:
    for sums in ({}, {"sender": True}):
        with pytest.raises(TraceError) as caught:
            parse_iperf3(json.dumps(document(interval(0, 1, 1448, **sums), protocol="UDP")))
        assert (caught.value.rule, caught.value.field) == ("sender", "intervals")


def tried(text: str) -> None:
    try:
        assert resampled(parse_iperf3(text)).trace.rows
    except TraceError as error:
        assert str(error)


@given(st.text(st.characters() | st.sampled_from('{}[]":,0123456789'), max_size=60))
@settings(max_examples=100)
def test_any_text_is_a_measurement_or_refused(text: str) -> None:
    tried(text)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({})


@given(st.lists(st.builds(interval, *[VALUES | st.floats(0, 1e6)] * 3), max_size=4), VALUES, VALUES)
def test_any_values_in_the_right_places_are_a_measurement_or_refused(intervals: Any, protocol: Any, size: Any) -> None:
    tried(json.dumps(document(*intervals, start={"test_start": {"protocol": protocol, "blksize": size}})))
    tried(json.dumps(document(*intervals, protocol="UDP")))
