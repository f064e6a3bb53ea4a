"""What a participant's driver sends through, and takes what comes from."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.sync.gossip.inbox import Inbox
from testbed.sync.gossip.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class Mailbox:
    """Both ways of one member's messages."""

    inbox: Inbox
    queue: MessageQueue
