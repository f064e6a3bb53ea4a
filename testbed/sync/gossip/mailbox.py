"""Both ways of one member's messages: what its driver sends through, and takes what comes from."""

from __future__ import annotations

from collections.abc import Mapping

from testbed.sync.gossip.inbox import Gone, Inbox, Sent
from testbed.sync.gossip.message_codec import MessageCodec
from testbed.sync.gossip.message_queue import MakeOutbox, MessageQueue, Stale
from testbed.sync.transport import Outbox, TransportSettings


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
        self.inbox.put(Sent(peer))

    def _undelivered(self, peer: str, reason: str) -> None:
        self.inbox.put(Gone(peer, f"can't send to it: {reason}"))
