"""Control messages: what is sent is what arrives, and what is none of them is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.protocol import (
    MAX_LINE_BYTES,
    Abort,
    ControlMessage,
    Goodbye,
    Held,
    Hello,
    Holding,
    Lost,
    MeanSlice,
    PeerSample,
    Prepare,
    ProtocolError,
    Reconfigure,
    Renew,
    Report,
    Stop,
    Welcome,
    decode,
    encode,
)

pytestmark = pytest.mark.unit

REPORT = Report(
    member="a",
    round=3,
    epoch=1,
    started_s=1.5,
    finished_s=2.5,
    compute_s=0.1,
    paced_s=0.2,
    sent_bytes=10,
    received_bytes=20,
    lost=0,
    duplicated=1,
    waited={"b": 0.25},
    peers=(PeerSample("b", 1000, 0.5, 0.04, 2, 1e6), PeerSample("c", 1, 0.0, 0.0, 0)),
    metrics={"loss": 0.5},
    late_s=0.01,
)


@pytest.mark.parametrize(
    "message",
    [
        Hello("a", ("10.0.0.2", 4000), "cuda", "token"),
        Welcome({"model": "cnn"}, {"a": ("10.0.0.2", 4000)}, {"epoch": 0}, {"b": "00ff"}),
        Hello("a", ("10.0.0.2", 4000), standing={"round": 3, "halted": False}),
        Welcome({"model": "cnn"}, {"a": ("10.0.0.2", 4000)}, {"epoch": 0}, {"b": "00ff"}, 5.0, "b"),
        Prepare({"epoch": 1}),
        Prepare({"epoch": 1}, {"a": ("10.0.0.2", 4000)}, "b"),
        Renew("a"),
        Lost("a", "b", "reset"),
        Abort(4, "b is gone"),
        Holding("a", 4, 7, False, 100, ((0, 10), (20, 100))),
        Reconfigure({"epoch": 4}, {"a": ("10.0.0.2", 4000)}, (Holding("a", 4, 7, False, 9, ((0, 9),)),)),
        replace(REPORT, slices=(MeanSlice(0, 5, ("a", "b"), 2.0), MeanSlice(5, 9, ("a",), 1.0))),
        Held("a", 1),
        REPORT,
        Goodbye("a", 7, "digest", {"accuracy": 0.97}),
        Stop("interrupted"),
        Stop("the others went on", again=True),
    ],
    ids=lambda message: message.kind,
)
def test_what_is_sent_arrives(message: ControlMessage) -> None:
    line = encode(message)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert decode(line) == message


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (b"", "not a message"),
        (b"[]", "not a message"),
        (b'{"kind": "dance"}', "not a message"),
        (b'{"member": "a"}', "not a message"),
        (b"\xff\xfe", "not a message"),
        (b'{"kind": "held", "member": "a"}', "held: .*epoch"),
        (b'{"kind": "held", "member": "a", "epoch": 1, "more": 2}', r"unknown fields \['more'\]"),
        (b'{"kind": "hello", "member": "a", "address": 5}', "hello"),
        (b'{"kind": "hello", "member": "a", "address": ["h"]}', "hello"),
        (b'{"kind": "report", "peers": [{"peer": "b", "oops": 1}]}', "report"),
        (b'{"kind": "welcome", "roster": 3}', "welcome"),
        (b'{"kind": "stop", "reason": "r", "again": 3}', "stop: again"),
        (
            b'{"kind": "holding", "member": "a", "epoch": 1, "round": 1, "over": false, "final": [[3, 3]]}',
            "no elements",
        ),
        (b'{"kind": "reconfigure", "plan": {}, "roster": {}, "holdings": [{"member": "a"}]}', "reconfigure"),
        (b'{"kind": "reconfigure", "plan": {}, "roster": {}, "holdings": 3}', "reconfigure"),
        (b'{"kind": "report", "slices": [{"start": 0, "stop": 1, "members": 3, "weight": 1}]}', "report"),
        (b" " * (MAX_LINE_BYTES + 1), "at most"),
    ],
)
def test_what_is_no_message_is_refused(line: bytes, rule: str) -> None:
    with pytest.raises(ProtocolError, match=rule):
        decode(line)
