"""Control messages arrive as they were sent, and any other input is refused with a ProtocolError."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from testbed.protocol import (
    MAX_LINE_BYTES,
    Abort,
    AbortGraph,
    Arrived,
    CommitGraph,
    Confirm,
    ControlMessage,
    Died,
    Goodbye,
    Held,
    Hello,
    Holding,
    Job,
    Lost,
    MeanSlice,
    NodeConfiguration,
    PeerSample,
    Prepare,
    PrepareGraph,
    Probe,
    PromiseGraph,
    ProtocolError,
    Reach,
    Reconfigure,
    Rejoin,
    Renew,
    Report,
    Stop,
    Train,
    Unreached,
    Welcome,
    checked_metrics,
    decode,
    encode,
)
from testbed.schema import MOST_TEXT, brief, check_name

pytestmark = pytest.mark.pure

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

FIRST = string.ascii_letters + string.digits + "_"
NAMES = st.builds(str.__add__, st.sampled_from(FIRST), st.text(FIRST + ".-", max_size=63))  # 9 times as fast as a regex
NUMBERS = st.integers(0, 2**32 - 1)
COUNTS = st.integers(0, 2**53)
SECONDS = st.floats(0, 1e9)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | FINITE | TEXTS
VALUES = st.recursive(LEAVES, lambda its: st.lists(its) | st.dictionaries(TEXTS, its), max_leaves=5)
DOCUMENTS = st.dictionaries(TEXTS, VALUES.filter(lambda value: depth(value) <= 5), max_size=4)
ADDRESSES = st.tuples(st.text("abc.0123", min_size=1, max_size=20), st.integers(0, 65535))
ROSTERS = st.dictionaries(NAMES, ADDRESSES, max_size=4)
KEYS = st.dictionaries(NAMES, st.binary(min_size=32, max_size=32).map(bytes.hex), max_size=3)
METRICS = st.dictionaries(TEXTS.filter(bool), FINITE, max_size=4)
MEMBERS = st.lists(NAMES, max_size=3).map(tuple)
CUTS = st.lists(COUNTS, max_size=8, unique=True).map(sorted)
SPANS = CUTS.map(lambda cuts: tuple(zip(cuts[::2], cuts[1::2], strict=False)))
SLICES = st.builds(MeanSlice, st.integers(0, 100), st.integers(101, 200), MEMBERS, st.floats(0, 1e300))
SAMPLES = st.builds(PeerSample, NAMES, COUNTS, SECONDS, SECONDS, COUNTS, st.floats(0, 1e18), SECONDS, COUNTS)
TRAINS = st.builds(Train, st.floats(1, 1e11), st.floats(1e-6, 1e6), st.integers(1, 2**53), COUNTS, COUNTS)
ARRIVALS = st.dictionaries(NAMES, st.lists(TRAINS, max_size=3).map(tuple), max_size=3)
HOLDINGS = st.builds(Holding, NAMES, NUMBERS, NUMBERS, st.booleans(), st.just(2**53), SPANS)
CONFIGURATIONS = st.builds(
    NodeConfiguration,
    *(TEXTS, MEMBERS, MEMBERS, st.dictionaries(NAMES, st.floats(0, 1e9), max_size=3), MEMBERS, DOCUMENTS),
    *(st.integers(1, 9), st.none() | st.tuples(NUMBERS, NUMBERS), NUMBERS),
)
JOBS = st.builds(Job, NUMBERS, st.integers(-(2**63), 2**63 - 1), TEXTS, DOCUMENTS, DOCUMENTS, DOCUMENTS)
REPORTS = st.builds(
    Report,
    *(NAMES, NUMBERS, NUMBERS, SECONDS, SECONDS, SECONDS, SECONDS, COUNTS, COUNTS, COUNTS, COUNTS),
    waited=st.dictionaries(NAMES, SECONDS, max_size=3),
    peers=st.lists(SAMPLES, max_size=3).map(tuple),
    metrics=METRICS,
    slices=st.lists(SLICES, max_size=3).map(tuple),
    arrivals=ARRIVALS,
)
#: What turns readers over.
NASTY = (b"1e999", b"NaN", b"-1", b"null", b'"\\ud800"', b"[" * 2000, b"{}", b"[]", b'"', b"\xff")

#: Of each kind, what members and controllers that work may say.
MESSAGES: Mapping[type[ControlMessage], st.SearchStrategy[ControlMessage]] = {
    Hello: st.builds(Hello, NAMES, ADDRESSES, TEXTS, TEXTS, NUMBERS, st.booleans()),
    Rejoin: st.builds(Rejoin, NAMES, DOCUMENTS, ROSTERS, NUMBERS, st.booleans(), st.integers(0, 2**31)),
    Welcome: st.builds(Welcome, JOBS, ROSTERS, DOCUMENTS, KEYS, SECONDS, NAMES | st.just("")),
    Prepare: st.builds(Prepare, DOCUMENTS, ROSTERS, NAMES | st.just(""), KEYS),
    Held: st.builds(Held, NAMES, NUMBERS, TEXTS),
    Confirm: st.builds(Confirm, NUMBERS),
    Report: REPORTS,
    Arrived: st.builds(Arrived, NAMES, ARRIVALS),
    Renew: st.builds(Renew, NAMES),
    Reach: st.builds(Reach, ROSTERS),
    Unreached: st.builds(Unreached, NAMES, st.lists(NAMES, max_size=3).map(tuple), NUMBERS),
    Lost: st.builds(Lost, NAMES, NAMES, TEXTS, NUMBERS, st.booleans()),
    Abort: st.builds(Abort, NUMBERS, TEXTS),
    Holding: HOLDINGS,
    Reconfigure: st.builds(Reconfigure, DOCUMENTS, ROSTERS, st.lists(HOLDINGS, max_size=2).map(tuple)),
    Goodbye: st.builds(Goodbye, NAMES, NUMBERS, TEXTS, METRICS, TEXTS),
    Probe: st.builds(Probe, NAMES, COUNTS, st.floats(0, 3600)),
    Died: st.builds(Died, NAMES),
    PrepareGraph: st.builds(PrepareGraph, NUMBERS),
    PromiseGraph: st.builds(PromiseGraph, NAMES, NUMBERS),
    CommitGraph: st.builds(CommitGraph, NUMBERS, CONFIGURATIONS, ROSTERS),
    AbortGraph: st.builds(AbortGraph),
    Stop: st.builds(Stop, TEXTS, st.booleans()),
}


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_what_is_sent_arrives(kind: type[ControlMessage]) -> None:
    @given(MESSAGES[kind])
    def arrives(message: ControlMessage) -> None:
        line = encode(message)
        assert line.endswith(b"\n") and line.count(b"\n") == 1
        assert decode(line) == message
        assert json.loads(line)["kind"] == message.kind

    arrives()


def test_every_message_is_tried() -> None:
    assert set(ControlMessage.__subclasses__()) == set(MESSAGES)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(line: bytes) -> None:
    decoded_or_refused(line)


@given(st.one_of(*MESSAGES.values()).map(encode), st.data())
def test_a_spoilt_message_is_a_message_or_refused(line: bytes, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(line)))
        stop = data.draw(st.integers(start, min(start + 8, len(line))))
        line = line[:start] + data.draw(st.sampled_from(NASTY) | st.binary(max_size=4)) + line[stop:]
    decoded_or_refused(line)


def decoded_or_refused(line: bytes) -> None:
    try:
        message = decode(line)
    except ProtocolError as error:
        assert len(str(error)) <= MOST_TEXT + 30
    else:
        assert decode(encode(message)) == message


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (b"", "not a message"),
        (b"[]", "not a message"),
        (b'{"kind": "dance"}', "dance: Invalid value"),
        (b'{"member": "a"}', "not a message: .*kind"),
        (b"\xff\xfe", "not a message"),
        (b'{"kind": "held", "member": "a"}', "held: .*epoch"),
        (b'{"kind": "held", "member": "a", "epoch": 1, "more": 2}', "held: .*`more`"),
        (b'{"kind": "held", "member": "a/b", "epoch": 1}', r"held: .*\$.member"),
        (b'{"kind": "held", "member": "%s", "epoch": 1}' % (b"a" * 65), r"held: .*\$.member"),
        (b'{"kind": "held", "member": "a", "epoch": 4294967296}', r"held: .*\$.epoch"),
        (b'{"kind": "held", "member": "a", "epoch": 1, "refusal": "%s"}' % (b"x" * 5000), r"held: .*\$.refusal"),
        (b'{"kind": "hello", "member": "a", "address": 5}', "hello"),
        (b'{"kind": "hello", "member": "a", "address": ["h"]}', "hello"),
        (b'{"kind": "hello", "member": "a", "address": ["h", 70000]}', "hello"),
        (b'{"kind": "welcome", "roster": 3}', "welcome"),
        (b'{"kind": "stop", "reason": "r", "again": 3}', "stop: .*again"),
        (b'{"kind": "prepare", "plan": {"a": %s' % (b"[" * 100_000), r"prepare: .*\$.plan"),
        (b'{"kind": "prepare", "plan": %s' % (b"[" * 100_000), r"prepare: .*\$.plan"),
        (b"[" * 100_000, "not a message"),
        (
            b'{"kind": "holding", "member": "a", "epoch": 1, "round": 1, "over": true,"elements": 9,"final": [[3, 3]]}',
            "holding: ",
        ),
        (b'{"kind": "reconfigure", "plan": {}, "roster": {}, "holdings": [{"member": "a"}]}', "reconfigure"),
        (b'{"kind": "reconfigure", "plan": {}, "roster": {}, "holdings": 3}', "reconfigure"),
        (b" " * (MAX_LINE_BYTES + 1), f"the line has {MAX_LINE_BYTES + 1} bytes"),
    ],
)
def test_what_is_no_message_is_refused(line: bytes, rule: str) -> None:
    with pytest.raises(ProtocolError, match=rule):
        decode(line)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("metrics", '{"loss": "x"}'),
        ("metrics", "[]"),
        ("metrics", '{"loss": 1e999}'),
        ("metrics", '{"loss": NaN}'),
        ("metrics", json.dumps({str(i): 1.0 for i in range(65)})),
        ("peers", '["x"]'),
        ("peers", '[{"peer": "b", "oops": 1}]'),
        ("slices", "[{}]"),
        ("slices", '[{"start": 0, "stop": 1, "members": 3, "weight": 1}]'),
        ("slices", '[{"start": 1, "stop": 1, "members": [], "weight": 1}]'),
        ("arrivals", '{"b": [[1e999, 1, 1]]}'),
        ("arrivals", '{"b": [[1, 0, 1]]}'),
        ("arrivals", json.dumps({"b": [[1, 1, 1]] * 1025})),
        ("sent_bytes", "-1"),
        ("round", "4294967296"),
        ("round", "true"),
        ("late_s", "-0.5"),
        ("waited", "[" * 100_000),
    ],
)
def test_a_field_of_a_report_that_cannot_be_is_refused_by_its_name(field: str, value: str) -> None:
    fields = {name: json.dumps(known) for name, known in json.loads(encode(REPORT)).items()}
    line = "{" + ",".join(f'"{name}":{known}' for name, known in {**fields, field: value}.items()) + "}"
    with pytest.raises(ProtocolError, match=rf"report: .*({field}|malformed)"):
        decode(line.encode())


def test_a_figure_that_is_not_finite_arrives_as_none() -> None:
    diverged = decode(encode(replace(REPORT, metrics={"loss": float("nan"), "norm": float("inf")})))
    assert isinstance(diverged, Report) and diverged.metrics == {"loss": None, "norm": None}


def test_a_hello_s_token_is_not_quoted() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(b'{"kind": "hello", "token": "a secret", "member": "a"')
    assert "secret" not in str(caught.value)


def test_keys_are_not_shown() -> None:
    key = "ab" * 32
    assert key not in repr(Prepare({}, keys={"b": key})) + repr(Welcome(Job(1), {}, {}, keys={"b": key}))


def test_metrics_are_checked_where_they_are_made() -> None:
    assert checked_metrics({"loss": 1}) == {"loss": 1.0}
    with pytest.raises(ProtocolError):
        checked_metrics({str(i): 0.0 for i in range(65)})


def test_names_are_those_that_messages_take() -> None:
    check_name("paris-w0")
    for wrong in ("", "a b", "-a", "a\n", "a" * 65):
        with pytest.raises(ProtocolError) as caught:
            check_name(wrong)
        assert (caught.value.field, caught.value.given) == ("member", wrong)


def test_a_text_of_any_length_can_be_sent() -> None:
    stop = decode(encode(Stop(brief("\ud800" + "x" * 10_000))))
    assert isinstance(stop, Stop) and len(stop.reason) == MOST_TEXT and stop.reason.endswith(" …")
