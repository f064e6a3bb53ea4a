"""What a member's peers send it: greetings, frames of rounds and of gossip, probes, and what it asks them for.

Frames come with the checksums that are theirs, and probes with the proofs: those who have the key of a member can make
them.
"""

from __future__ import annotations

import hashlib
import socket
import struct
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
from tests.fuzz.messages import simply
from tests.fuzz.target import CLEAN, Feed, Target
from tests.sync.keys import keys
from tests.sync.plans import names, star

MEMBERS = names(4)
ELEMENTS, CHUNK = 600, 1024
PLAN = Plan(3, MEMBERS, (star(MEMBERS, "m0"),), CHUNK, auxiliary=(Route("m1", "m2", ("m3",)),))
SETTINGS = TransportSettings("m0", keys("m0", MEMBERS), 0.5, generation=PLAN.epoch)
HEADERS = ChunkHeaderFormat(len(MEMBERS))

#: What an answer to who asks for means begins with, before its hash; and what it may bring.
LENGTHS, MOST_MEANS = 12, 1 << 14

#: Before each frame: who sends it, and on which channel.
_FROM = struct.Struct("<BB")
#: How many microseconds after the one before a probe's datagram came; its head and a name of two letters follow.
_DATAGRAM = struct.Struct(f"<I{probe._HEAD.size}s2s")


def frames_in(data: bytes, header_bytes: int, most_bytes: int) -> Iterator[tuple[str, int, Frame, memoryview]]:
    """The frames that bytes are: sender, channel, head without its last checksum, and payload, as far as there is."""
    wire = FrameFormat(header_bytes)
    rest = memoryview(bytearray(data))
    while len(rest) >= _FROM.size + wire.size - 4:
        who, channel = _FROM.unpack_from(rest)
        head = bytes(rest[_FROM.size : _FROM.size + wire.size - 4])
        rest = rest[_FROM.size + wire.size - 4 :]
        with suppress(SyncError):  # a head that is none ends its connection; the next one's frames come on another
            frame = wire.unpack(memoryview(head + struct.pack("<I", zlib.crc32(head))))
            if frame.length > most_bytes:
                raise FrameError("too long, as a listener says")
            payload = rest[: frame.length]
            rest = rest[frame.length :]
            if len(payload) == frame.length:
                yield MEMBERS[1 + who % 3], channel, frame._replace(checksum=checksum(payload)), payload


def framed(who: int, frame: Frame, payload: bytes, channel: int = 0) -> bytes:
    """A frame as `frames_in` reads it."""
    sealed = frame.sealed(memoryview(payload))
    return _FROM.pack(who - 1, channel) + FrameFormat(len(frame.header)).pack(sealed)[:-4] + payload


def take(receiver: Receiver, sender: str, channel: int, frame: Frame, payload: memoryview) -> None:
    """What a listener does with a frame of a connection."""
    with suppress(SyncError):
        greeting = Greeting(sender, channel, generation=PLAN.epoch)
        dispatch(receiver, greeting, Received(sender, frame, payload, frame.length, 0.0))


class Unsent(Outbox):
    """Sends nothing: what is right is as good as gone."""

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
    """m0, the root, in round 1."""
    group = AllReduceGroup(PLAN, SETTINGS, {}, make_outbox=Unsent)
    group.begin(torch.zeros(ELEMENTS), 1.0)
    for sender, channel, frame, payload in frames_in(data, HEADERS.size, CHUNK):
        if not _waits(frame):
            take(group.receiver(Greeting(sender, channel, 0, PLAN.epoch)), sender, channel, frame, payload)


def _waits(frame: Frame) -> bool:
    """Whether it is of the round after: that one would wait until this member begins it, which it does not here."""
    try:
        return HEADERS.unpack(frame.header).round == 2
    except FrameError:
        return False


@contextmanager
def gossiping(_: Path) -> Iterator[Feed]:
    """A member that takes in what others gossip, of any scheme."""
    for room in ("decoupled_diloco", "staggered"):
        import_module(f"testbed.schemes.{room}.messages")  # the other schemes' messages are known with their modules

    def feed(data: bytes) -> None:
        inbox = Inbox(MessageCodec(MEMBERS, ELEMENTS))
        receiver = inbox.receiver(Greeting("m1"))
        for sender, channel, frame, payload in frames_in(data, HEADER_BYTES, receiver.most_bytes):
            take(receiver, sender, channel, frame, payload)
        while (event := inbox.take(0.0)) is not None:
            assert isinstance(event, MessageArrived)

    yield feed


def connected(use: Callable[[socket.socket], object]) -> Callable[[bytes], None]:
    """What reads from a connection on which the bytes come, and then its end."""

    def feed(data: bytes) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            ours.sendall(data[: 1 << 16])
            ours.shutdown(socket.SHUT_WR)
            with suppress(OSError):  # it ended early
                use(theirs)

    return feed


def greeted(connection: socket.socket) -> None:
    """As a listener does with a stranger, who can't know what is to be proved."""
    with suppress(ImpostorError):
        handshake.answer(connection, SETTINGS, time.monotonic() + 10)


@contextmanager
def hearing_probes(_: Path) -> Iterator[Feed]:
    """What a member hears of the datagrams, and what it tells its controller then."""
    arrivals = Arrivals()
    with socket.create_server(("127.0.0.1", 0)) as accepting:
        listener = probe.ProbeListener(accepting, SETTINGS, arrivals)

    def feed(data: bytes) -> None:
        at_s = time.time()
        listener._newest.clear()
        for microseconds, head, name in _DATAGRAM.iter_unpack(data[: len(data) // _DATAGRAM.size * _DATAGRAM.size]):
            at_s += microseconds / 1e6
            if (packet := listener._known(proved(head, name))) is not None:
                listener._take(packet, at_s)
        for member in MEMBERS:
            listener._end(member)
        told = Arrived("m0", arrivals.take())
        assert decode(encode(told)) == told

    try:
        yield feed
    finally:
        listener.close()


def proved(head: bytes, name: bytes) -> bytes:
    """A probe's datagram with the proof of the member of this name, if there is one."""
    key = SETTINGS.keys.get(name.decode(errors="replace"), b"")
    return (head + name + probe._proof(key, head + name)).ljust(probe.PACKET_BYTES, b"\0")


def use_means(data: bytes) -> None:
    """What a peer answers that was asked for means: lengths, a note, data. Its hash is right."""
    lengths, rest = data[:LENGTHS], data[LENGTHS:]
    whole = lengths + hashlib.sha256(rest).digest() + rest
    connected(lambda connection: fetch._receive(connection, MOST_MEANS))(whole)


def use_state(data: bytes) -> None:
    """The state that a member hands over to one that comes."""
    parts = trained()
    unpack(FetchAnswer(StateNote(7, tuple(parts)), memoryview(bytearray(data))), parts)


def trained() -> dict[str, Any]:
    """The parts of a member's state."""
    model = torch.nn.Linear(3, 2)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)}


def use_holdings(data: bytes) -> None:
    """What all reckon from what they hold of a round in which one of them was lost."""
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

#: What ends a connection, and nothing else.
REFUSALS = (*CLEAN, SyncError)

TARGETS = (
    Target("round", simply(use_frames), ROUND, REFUSALS),
    Target("gossip", gossiping, GOSSIP, REFUSALS),
    Target("greeting", simply(connected(greeted)), {"plain": Greeting("m1").pack(bytes(16)) + bytes(32)}, REFUSALS),
    Target("probes", hearing_probes, {"train": TRAIN}, REFUSALS),
    Target("request", simply(connected(receive_request)), {"means": fetch._pack(ASKED)}, REFUSALS),
    Target("means", simply(use_means), {"plain": struct.pack("<IQ", len(NOTE), 36) + NOTE + bytes(36)}, REFUSALS),
    Target("state", simply(use_state), {"plain": bytes(packed(7, trained()).data)}, REFUSALS),
    Target("holdings", simply(use_holdings), {"plain": encode(Reconfigure({}, {}, HOLDINGS))}, REFUSALS),
)
