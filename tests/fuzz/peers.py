"""Input from a member's peers: greetings, frames of rounds and of gossip, probes, and answers to requests.

Frames come with correct checksums, and probes with correct proofs: a peer that has the member's key can make them.
"""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import torch

from testbed.controller.allreduce.recovery import disagreeing
from testbed.plan import Plan, Route
from testbed.protocol import Arrived, Holding, MeanSlice, Reconfigure, decode, encode
from testbed.sync.allreduce import fetch, spans
from testbed.sync.allreduce.chunk_codec import ChunkHeader, ChunkHeaderFormat, Kind
from testbed.sync.allreduce.fetch import FetchAnswer, FetchRequest, MeansNote, StateNote, Wanted, receive_request
from testbed.sync.allreduce.group import AllReduceGroup
from testbed.sync.allreduce.handover import packed, unpack
from testbed.sync.allreduce.recovery import orders_for
from testbed.sync.errors import FrameError, ImpostorError, SyncError
from testbed.sync.gossip.inbox import Inbox, MessageArrived
from testbed.sync.gossip.message_codec import HEADER_BYTES, MessageCodec, PartHeader
from testbed.sync.transport import Greeting, Outbox, RouteTable, TransportSettings, handshake, probe
from testbed.sync.transport.arrivals import Arrivals
from testbed.sync.transport.frame import Frame, FrameFormat, checksum
from testbed.sync.transport.listener import Received, Receiver, dispatch
from testbed.sync.transport.sender import Sender
from tests.fuzz.messages import without_setup
from tests.fuzz.target import CLEAN, Feed, Target
from tests.sync.keys import keys
from tests.sync.plans import names, star
from tests.waiting import PATIENCE_S

MEMBERS = names(4)
ELEMENTS, CHUNK = 600, 1024
PLAN = Plan(3, MEMBERS, (star(MEMBERS, "m0"),), CHUNK, auxiliary=(Route("m1", "m2", ("m3",)),))
SETTINGS = TransportSettings("m0", keys("m0", MEMBERS), 0.5, generation=PLAN.epoch)
HEADERS = ChunkHeaderFormat(len(MEMBERS))

#: The bytes of an answer before its hash, and the most bytes of means in it.
LENGTHS, MOST_MEANS = 12, 1 << 14

#: Before each frame: its sender and its channel.
_FROM = struct.Struct("<BB")
#: The microseconds since the last datagram, then a probe's head and a name of two letters.
_DATAGRAM = struct.Struct(f"<I{probe._HEAD.size}s2s")


def frames_in(data: bytes, header_bytes: int, most_bytes: int) -> Iterator[tuple[str, int, Frame, memoryview]]:
    """Yield the frames in an input: sender, channel, frame and payload, as far as the bytes reach."""
    wire = FrameFormat(header_bytes)
    rest = memoryview(bytearray(data))
    while len(rest) >= _FROM.size + wire.size - 4:
        who, channel = _FROM.unpack_from(rest)
        head = bytes(rest[_FROM.size : _FROM.size + wire.size - 4])
        rest = rest[_FROM.size + wire.size - 4 :]
        with suppress(SyncError):  # a broken head ends its connection; the next frames come on another one
            frame = wire.unpack(memoryview(head + struct.pack("<I", zlib.crc32(head))))
            if frame.length > most_bytes:
                raise FrameError("too long, as a listener says")
            payload = rest[: frame.length]
            rest = rest[frame.length :]
            if len(payload) == frame.length:
                yield MEMBERS[1 + who % 3], channel, frame._replace(checksum=checksum(payload)), payload


def framed(who: int, frame: Frame, payload: bytes, channel: int = 0) -> bytes:
    """Return a frame in the form that `frames_in` reads."""
    sealed = frame.sealed(memoryview(payload))
    return _FROM.pack(who - 1, channel) + FrameFormat(len(frame.header)).pack(sealed)[:-4] + payload


def deliver(receiver: Receiver, sender: str, channel: int, frame: Frame, payload: memoryview) -> None:
    """Hand a frame to a receiver, as a listener does."""
    with suppress(SyncError):
        greeting = Greeting(sender, channel, generation=PLAN.epoch)
        dispatch(receiver, greeting, Received(sender, frame, payload, frame.length, 0.0))


class Unsent(Outbox):
    """An outbox that sends nothing, and reports each frame as sent."""

    def connect(self, table: RouteTable) -> list[Sender]:
        self._tables[table.number] = table
        return []

    def follow(self, table: RouteTable) -> None: ...

    def put(self, peers: Sequence[str], *frame: Any) -> None:
        *_, sent, _ = frame
        for peer in peers:
            sent(peer)

    def crowded(self, peer: str) -> bool:
        return False

    def forward(self, peer: str, frame: Frame, payload: memoryview) -> None:
        self._table(frame).route(peer, frame)


def use_frames(data: bytes) -> None:
    """Feed frames to m0, the root, in round 1."""
    group = AllReduceGroup(PLAN, SETTINGS, {}, make_outbox=Unsent)
    group.begin(torch.zeros(ELEMENTS), 1.0)
    for sender, channel, frame, payload in frames_in(data, HEADERS.size, CHUNK):
        if not _waits(frame):
            deliver(group.receiver(Greeting(sender, channel, 0, PLAN.epoch)), sender, channel, frame, payload)


def _waits(frame: Frame) -> bool:
    """Return whether a frame is of the next round: it would wait until this member begins that round."""
    try:
        return HEADERS.unpack(frame.header).round == 2
    except FrameError:
        return False


@contextmanager
def open_gossip_inbox(_: Path) -> Iterator[Feed]:
    """Feed gossip messages of any scheme to a member."""
    for module in ("decoupled_diloco.syncer", "staggered.shards"):
        import_module(f"testbed.schemes.{module}")  # the other schemes' messages are known with their modules

    def feed(data: bytes) -> None:
        inbox = Inbox(MessageCodec(MEMBERS, ELEMENTS))
        receiver = inbox.receiver(Greeting("m1"))
        for sender, channel, frame, payload in frames_in(data, HEADER_BYTES, receiver.most_bytes):
            deliver(receiver, sender, channel, frame, payload)
        while (event := inbox.take(0.0)) is not None:
            assert isinstance(event, MessageArrived)

    yield feed


def over_connection(use: Callable[[socket.socket], object]) -> Callable[[bytes], None]:
    """Return a use of bytes that arrive on a connection, which then ends."""

    def feed(data: bytes) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            ours.sendall(data[: 1 << 16])
            ours.shutdown(socket.SHUT_WR)
            with suppress(OSError):  # it ended early
                use(theirs)

    return feed


def use_greeting(connection: socket.socket) -> None:
    """Answer a greeting as a listener does. The stranger can't know the proof."""
    with suppress(ImpostorError):
        handshake.answer(connection, SETTINGS, time.monotonic() + 10)


@contextmanager
def open_probe_listener(_: Path) -> Iterator[Feed]:
    """Feed datagrams to a probe listener, and take its report to the controller."""
    arrivals = Arrivals()
    with socket.create_server(("127.0.0.1", 0)) as accepting:
        listener = probe.ProbeListener(accepting, SETTINGS, arrivals)

    def feed(data: bytes) -> None:
        at_s = time.time()
        listener._newest.clear()
        for microseconds, head, name in _DATAGRAM.iter_unpack(data[: len(data) // _DATAGRAM.size * _DATAGRAM.size]):
            at_s += microseconds / 1e6
            if (packet := listener._unpack(with_proof(head, name))) is not None:
                listener._take(packet, at_s)
        for member in MEMBERS:
            listener._end(member)
        told = Arrived("m0", arrivals.take())
        assert decode(encode(told)) == told

    try:
        yield feed
    finally:
        listener.close()


def with_proof(head: bytes, name: bytes) -> bytes:
    """Return a probe's datagram with the proof of the named member, if there is such a member."""
    key = SETTINGS.keys.get(name.decode(errors="replace"), b"")
    return (head + name + probe._proof(key, head + name)).ljust(probe.PACKET_BYTES, b"\0")


def use_means(data: bytes) -> None:
    """Receive a peer's answer to a request for means: lengths, a note, data. The hash is correct."""
    lengths, rest = data[:LENGTHS], data[LENGTHS:]
    whole = lengths + hashlib.sha256(rest).digest() + rest
    never = threading.Event()
    over_connection(lambda connection: fetch._receive(connection, MOST_MEANS, PATIENCE_S, never))(whole)


def use_state(data: bytes) -> None:
    """Unpack the state that a member hands over to a new member."""
    parts = state_parts()
    unpack(FetchAnswer(StateNote(7, tuple(parts)), memoryview(bytearray(data))), parts)


def state_parts() -> dict[str, Any]:
    """Return the parts of a member's state."""
    model = torch.nn.Linear(3, 2)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)}


def use_holdings(data: bytes) -> None:
    """Derive the orders of all survivors from their holdings of a round in which a member was lost."""
    message = decode(data)
    if not isinstance(message, Reconfigure) or disagreeing(message.holdings):
        return  # the controller passes on none that contradict each other
    holdings = {holding.member: holding for holding in message.holdings}
    orders = {name: orders_for(name, tuple(holdings.values())) for name in holdings}
    assert len({(its.round, its.restart) for its in orders.values()}) <= 1
    for its in orders.values():
        begun = [each for each in holdings.values() if each.round >= its.round]
        held = any(each.final or each.over or each.round > its.round for each in begun)
        assert its.restart or held, "a mean that nobody has"
    for name, its in orders.items():
        in_it = (each for each in holdings.values() if each.round == its.round and not each.over)
        elements = max((each.elements for each in in_it), default=0)
        if its.reduces and not its.restart and holdings[name].round == its.round and not holdings[name].over:
            fetched = [(start, stop) for _, start, stop in its.fetch]
            assert spans.union((*fetched, *its.left, *holdings[name].final)) == ((0, elements),)


def _part(who: int, header: PartHeader, payload: bytes) -> bytes:
    return framed(who, Frame(header.pack(), len(payload)), payload)


def _chunk(who: int, header: ChunkHeader, channel: int = 0, **more: Any) -> bytes:
    payload = torch.ones(CHUNK // 4).numpy().tobytes()
    return framed(who, Frame(HEADERS.pack(header), len(payload), table=PLAN.epoch, **more), payload, channel)


PARTIAL = ChunkHeader(Kind.PARTIAL, 1, 0, PLAN.epoch, PLAN.epoch, 1, ELEMENTS, 0, 1.0, 0b10)
ROUND = {
    "partial": b"".join(_chunk(1 + i, PARTIAL._replace(contributors=2 << i)) for i in range(3)),
    "next": _chunk(1, PARTIAL._replace(offset=256)) + _chunk(1, PARTIAL._replace(round=3)),
    "forwarded": _chunk(1, PARTIAL, 2, route=1, left=1) + _chunk(3, PARTIAL, 1, route=1),
}
MODEL = bytes(4 * ELEMENTS)
GOSSIP = {
    **{f"code-{code}": _part(1, PartHeader(code, 1, 1, 1, 0.5, 4 * ELEMENTS), MODEL) for code in range(40)},
    "parts": _part(1, PartHeader(1, 1, 1, 1, 0.5, 8), bytes(4)) + _part(1, PartHeader(1, 1, 1, 1, 0.5, 8, 4), bytes(4)),
}
NOTE = msgspec.json.encode(MeansNote((MeanSlice(0, 9, MEMBERS, 2.0),)))
ASKED = FetchRequest(Wanted.MEANS, 3, 1, 0, 9)
HOLDINGS = (
    Holding("m0", 4, 7, False, 9, ((0, 4), (6, 7))),
    Holding("m1", 4, 7, False, 9, ((3, 5),)),
    Holding("m2", 4, 7, True),
)

HEADS = (probe._HEAD.pack(probe._MAGIC, 2**60, 12, number, 300 * number, 2) for number in range(12))
TRAIN = b"".join(_DATAGRAM.pack(500, head, b"m1") for head in HEADS)

#: Errors that end a connection, and nothing else.
REFUSALS = (*CLEAN, SyncError)

TARGETS = (
    Target("round", without_setup(use_frames), ROUND, REFUSALS),
    Target("gossip", open_gossip_inbox, GOSSIP, REFUSALS),
    Target(
        "greeting",
        without_setup(over_connection(use_greeting)),
        {"plain": Greeting("m1").pack(bytes(16)) + bytes(32)},
        REFUSALS,
    ),
    Target("probes", open_probe_listener, {"train": TRAIN}, REFUSALS),
    Target(
        "request", without_setup(over_connection(receive_request)), {"means": fetch._REQUEST.pack(*ASKED)}, REFUSALS
    ),
    Target(
        "means", without_setup(use_means), {"plain": struct.pack("<IQ", len(NOTE), 36) + NOTE + bytes(36)}, REFUSALS
    ),
    Target("state", without_setup(use_state), {"plain": bytes(packed(7, state_parts()).data)}, REFUSALS),
    Target("holdings", without_setup(use_holdings), {"plain": encode(Reconfigure({}, {}, HOLDINGS))}, REFUSALS),
)
