"""A member's messages: its inbox, and those that it sends.

Each peer gets one message after the other, without those that became useless while they waited.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

from testbed.sync.gossip.inbox import Inbox, ModelSent, PeerLost
from testbed.sync.gossip.message import Message
from testbed.sync.gossip.message_codec import HEADER_BYTES, PART_BYTES, MessageCodec, PartHeader, WireMessage
from testbed.sync.transport import Frame, Outbox, TransportSettings
from testbed.sync.transport.send_queue import Priority

#: Models handed over for one peer at once: while one is sent, the next is ready. Further ones wait in the queue, where
#: those that become useless can still be left out.
UNDER_WAY = 2

#: Returns True if a waiting message has become useless; its arguments are those of Participant.stale.
Stale = Callable[[str, Message, Sequence[Message]], bool]

#: Makes an Outbox; its arguments are those of Outbox.
MakeOutbox = Callable[[TransportSettings, int, Mapping[str, tuple[str, int]], Callable[[str, str], None]], Outbox]


def _nothing(peer: str) -> None:
    """Do nothing: a part was sent, and more parts of its model follow."""


class Mailbox:
    """A member's inbox, and the messages that it sends to peers. One thread calls all public methods.

    Attributes:
        inbox: The inbox. Other threads put sent models and lost peers into it.
        outbox: Carries frames to peers.
        sent_bytes: Bytes of messages sent, by peer.
        suppressed: The number of messages that were left out.
    """

    def __init__(
        self,
        settings: TransportSettings,
        codec: MessageCodec,
        roster: Mapping[str, tuple[str, int]],
        stale: Stale,
        inbox: Inbox | None = None,
        make_outbox: MakeOutbox = Outbox,
    ) -> None:
        """Make a mailbox without messages.

        Args:
            settings: How this member connects to its peers.
            codec: Packs and unpacks the messages.
            roster: Each member's address by name.
            stale: Returns True if a waiting message has become useless.
            inbox: An inbox, which may hold frames already; None to make one.
            make_outbox: Makes the outbox, which carries frames to peers.
        """
        self.inbox = inbox or Inbox(codec, settings.streams, settings.generation, settings.timeout_s)
        self.sent_bytes: Counter[str] = Counter()
        self.suppressed = 0
        self._codec = codec
        self._roster = dict(roster)
        self.outbox = make_outbox(settings, HEADER_BYTES, self._roster, self._undelivered)
        self._stale = stale
        self._dropped: set[str] = set()
        self._waiting: dict[str, deque[tuple[Message, WireMessage]]] = defaultdict(deque)
        self._under_way: Counter[str] = Counter()
        self._sequence: Counter[str] = Counter()

    def send(self, to: str, message: Message) -> None:
        """Send a message: a small one at once, a model once fewer than UNDER_WAY earlier ones are being sent."""
        if to in self._dropped:
            return
        packed = self._codec.pack(message)
        if packed.large:
            self._waiting[to].append((message, packed))
            self._send_on(to)
        else:
            self._hand_over(to, packed)

    def left(self, peer: str) -> None:
        """Record that a whole model was sent to the peer (ModelSent), and send the next one."""
        self._under_way[peer] -= 1
        if peer not in self._dropped:
            self._send_on(peer)

    def drop(self, peer: str) -> None:
        """Send nothing more to a lost peer."""
        self._dropped.add(peer)
        self._waiting.pop(peer, None)
        self.outbox.drop(peer)

    def admit(self, peer: str, address: tuple[str, int]) -> None:
        """Send to a peer that joins, perhaps not for the first time, at its address."""
        self._dropped.discard(peer)
        self._under_way.pop(peer, None)
        self._roster[peer] = address

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
            sent = self._sent if packed.large and start + PART_BYTES >= size else _nothing
            self.outbox.put((to,), priority, Frame(header._replace(offset=start).pack(), len(part)), part, sent)

    def _sent(self, peer: str) -> None:
        self.inbox.put(ModelSent(peer))

    def _undelivered(self, peer: str, reason: str) -> None:
        self.inbox.put(PeerLost(peer, f"messages to it failed: {reason}"))
