"""What a member sends: each peer's messages one after the other, those that became useless on the way left out.

Both ways of one member's messages: what its driver sends through, and takes what comes from.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from testbed.protocol import PeerSample
from testbed.sync.gossip.inbox import Inbox, ModelSent, PeerLost
from testbed.sync.gossip.message import Message
from testbed.sync.gossip.message_codec import HEADER_BYTES, PART_BYTES, MessageCodec, PartHeader, WireMessage
from testbed.sync.transport import Frame, Outbox, TransportSettings
from testbed.sync.transport.send_queue import Priority

#: Models on their way to a peer at once: one leaves while the next is at hand. Those behind wait here, where what
#: has become useless meanwhile can still be left out.
UNDER_WAY = 2

#: (to, message, later ones that wait for the same peer): whether nobody needs the message any more.
Stale = Callable[[str, Message, Sequence[Message]], bool]


#: Makes an Outbox: its arguments are those of Outbox.
MakeOutbox = Callable[[TransportSettings, int, Mapping[str, tuple[str, int]], Callable[[str, str], None]], Outbox]


class MessageQueue:
    """Sends messages to peers; all methods belong to one thread.

    `on_sent(peer)` is told, from another thread, that a model has left: `left` is to be called then. So is
    `on_failure(peer, reason)`, that a peer can't be reached. `suppressed` counts the messages that were left out.
    """

    def __init__(
        self,
        settings: TransportSettings,
        codec: MessageCodec,
        roster: Mapping[str, tuple[str, int]],
        stale: Stale,
        on_sent: Callable[[str], None],
        on_failure: Callable[[str, str], None],
        make_outbox: MakeOutbox = Outbox,
    ) -> None:
        self.sent_bytes: Counter[str] = Counter()
        self.suppressed = 0
        self._codec = codec
        self._roster = dict(roster)
        self._outbox = make_outbox(settings, HEADER_BYTES, self._roster, on_failure)
        self._stale = stale
        self._on_sent = on_sent
        self._dropped: set[str] = set()
        self._waiting: dict[str, deque[tuple[Message, WireMessage]]] = defaultdict(deque)
        self._under_way: Counter[str] = Counter()
        self._sequence: Counter[str] = Counter()

    def send(self, to: str, message: Message) -> None:
        """Have `message` delivered. What is small goes at once, a model when those before it have left."""
        if to in self._dropped:
            return
        packed = self._codec.pack(message)
        if packed.large:
            self._waiting[to].append((message, packed))
            self._send_on(to)
        else:
            self._hand_over(to, packed)

    def left(self, peer: str) -> None:
        """A model has left for the peer: the next may be under way."""
        self._under_way[peer] -= 1
        if peer not in self._dropped:
            self._send_on(peer)

    def drop(self, peer: str) -> None:
        """The peer is gone: nothing is sent to it any more."""
        self._dropped.add(peer)
        self._waiting.pop(peer, None)
        self._outbox.drop(peer)

    def admit(self, peer: str, address: tuple[str, int]) -> None:
        """The peer comes, perhaps not for the first time, and listens at `address`."""
        self._dropped.discard(peer)
        self._under_way.pop(peer, None)
        self._roster[peer] = address

    @property
    def idle(self) -> bool:
        """Whether all models are under way."""
        return not any(self._waiting.values())

    def samples(self) -> tuple[PeerSample, ...]:
        """What each peer's path did since the last call."""
        return self._outbox.samples()

    def sending_s(self) -> float:
        """Seconds that all connections together have spent in sending since they began."""
        return self._outbox.sending_s()

    def drain(self, timeout_s: float) -> None:
        """Wait until the peers have read all that was sent, then close the connections to them."""
        self._outbox.drain(timeout_s, lambda channel, seconds: None)

    def close(self) -> None:
        """Close the connections at once."""
        self._outbox.close()

    def _send_on(self, to: str) -> None:
        waiting = self._waiting[to]
        while waiting and self._under_way[to] < UNDER_WAY:
            message, packed = waiting.popleft()
            if self._stale(to, message, [later for later, _ in waiting]):
                self.suppressed += 1
            else:
                self._under_way[to] += 1
                self._hand_over(to, packed)

    def _hand_over(self, to: str, packed: WireMessage) -> None:
        sequence = self._sequence[to]
        self._sequence[to] = (sequence + 1) % 2**32
        size = len(packed.body)
        self.sent_bytes[to] += size
        header = PartHeader(packed.code, sequence, packed.number, packed.amount, packed.weight, size)
        for start in range(0, max(size, 1), PART_BYTES):
            part = packed.body[start : start + PART_BYTES]
            priority: Priority = (1 if packed.large else 0, sequence, start)
            last = packed.large and start + PART_BYTES >= size
            sent = partial(self._gone_out, last)
            self._outbox.put((to,), priority, Frame(header._replace(offset=start).pack(), len(part)), part, sent)

    def _gone_out(self, last: bool, to: str) -> None:
        """A part has left: the `last` one of something large, or another."""
        if last:
            self._on_sent(to)


class Mailbox:
    """What becomes of a message that was sent, the `inbox` is told: that it has left, or that its peer is gone."""

    def __init__(
        self,
        settings: TransportSettings,
        codec: MessageCodec,
        roster: Mapping[str, tuple[str, int]],
        stale: Stale,
        inbox: Inbox | None = None,
        make_outbox: MakeOutbox = Outbox,
    ) -> None:
        """Connect an inbox and a message queue.

        Args:
            settings: How this member connects to its peers.
            codec: Packs and unpacks the messages.
            roster: Where each member listens.
            stale: Whether a message that waits to be sent became useless.
            inbox: An inbox that may hold frames already; None to make one.
            make_outbox: Makes what carries frames to peers.
        """
        self.inbox = inbox or Inbox(codec, settings.streams, settings.generation, settings.timeout_s)
        self.queue = MessageQueue(settings, codec, roster, stale, self._sent, self._undelivered, make_outbox)

    def _sent(self, peer: str) -> None:
        self.inbox.put(ModelSent(peer))

    def _undelivered(self, peer: str, reason: str) -> None:
        self.inbox.put(PeerLost(peer, f"can't send to it: {reason}"))
