from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.trace.forms.flow import Flow
from testbed.trace.trace import TraceError
from tests.trace.forms.captures import ip

pytestmark = pytest.mark.pure


def flow(packet: bytes) -> str:
    return str(Flow.of_packet(packet))


def test_a_packet_s_flow() -> None:
    assert flow(ip("10.0.0.1", "10.0.0.2")) == "10.0.0.1:443->10.0.0.2:51000"
    assert flow(ip("2001:db8::1", "2001:db8::2", protocol=17)) == "[2001:db8::1]:443->[2001:db8::2]:51000"
    assert flow(ip("10.0.0.1", "10.0.0.2", protocol=1)) == "10.0.0.1->10.0.0.2"
    assert flow(ip("10.0.0.1", "10.0.0.2", fragment=100)) == "10.0.0.1->10.0.0.2", "a later fragment has no ports"
    assert flow(ip("10.0.0.1", "10.0.0.2")[:22]) == "10.0.0.1->10.0.0.2", "its ports are cut off"
    assert (
        flow(ip("10.0.0.1", "10.0.0.2")[:19]) == flow(b"") == flow(b"\x60" + bytes(38)) == flow(b"\x00" * 40) == "None"
    )


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("10.0.0.1:443->10.0.0.2:51000", True),
        ("10.0.0.1 -> 10.0.0.2", True),
        ("*->10.0.0.2", True),
        ("*:443->*", True),
        ("10.0.0.2->10.0.0.1", False),
        ("*:444->*", False),
        ("[2001:db8::1]:443->*", False),
    ],
)
def test_what_a_flow_matches(text: str, matches: bool) -> None:
    found = Flow.of_packet(ip("10.0.0.1", "10.0.0.2"))
    assert found is not None
    assert Flow.parse(text).matches(found) is matches


@pytest.mark.parametrize(
    "text", ["", "10.0.0.1", "10.0.0.1->", "a->b", "10.0.0.1:x->*", "*:0->*", "*:70000->*", "1.2.3->*"]
)
def test_what_is_no_flow_is_said(text: str) -> None:
    with pytest.raises(TraceError) as caught:
        Flow.parse(text)
    assert caught.value.rule == "flow"


@given(st.ip_addresses(), st.none() | st.integers(1, 65_535), st.ip_addresses(), st.none() | st.integers(1, 65_535))
def test_a_flow_is_written_as_it_is_read(a: object, port: int | None, b: object, other: int | None) -> None:
    def end(address: object, port: int | None) -> str:
        shown = f"[{address}]" if ":" in str(address) and port else str(address)
        return f"{shown}:{port}" if port else shown

    text = f"{end(a, port)}->{end(b, other)}"
    assert str(Flow.parse(text)) == text


@given(st.binary(max_size=60))
def test_any_bytes_have_a_flow_or_none(packet: bytes) -> None:
    found = Flow.of_packet(packet)
    assert found is None or found.matches(found)
