"""Participants in threads that exchange real frames over loopback, each with its own listener and connections."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

from torch import Tensor

from testbed.planning.graphs import Graph
from testbed.sync.codecs import PLAIN, Codec
from testbed.sync.errors import SyncError
from testbed.sync.gossip.driver import Driver, LocalStep
from testbed.sync.gossip.effects import Participant
from testbed.sync.gossip.inbox import Inbox, MemberFailed
from testbed.sync.gossip.mailbox import Mailbox
from testbed.sync.gossip.message_codec import MessageCodec
from testbed.sync.transport.handshake import TransportSettings
from testbed.sync.transport.listener import Listener
from testbed.sync.transport.sockets import listen
from tests.sync.keys import keys
from tests.waiting import PATIENCE_S


class Gate:
    """Lets steps begin up to an iteration, so that a slow test finds its members where it left them.

    A member whose step waits here still answers others, because a thread of its own makes its steps.
    """

    def __init__(self, last: float) -> None:
        self._last = last
        self._changed = threading.Condition()

    def open(self, last: float = inf) -> None:
        with self._changed:
            self._last = last
            self._changed.notify_all()

    def enter(self, iteration: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: iteration <= self._last, PATIENCE_S), f"{iteration} stays shut"


@dataclass
class Follow:
    """Records what a driver says of its member, and passes each `advanced` on."""

    tell: Callable[[int], None]
    entered: list[int] = field(default_factory=list)
    waits: list[tuple[float, str]] = field(default_factory=list)
    promises: list[int] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)

    def advanced(self, iteration: int) -> None:
        self.entered.append(iteration)
        self.tell(iteration)

    def promised(self, end: int) -> None:
        self.promises.append(end)

    def waited(self, seconds: float, peer: str) -> None:
        self.waits.append((seconds, peer))

    def lost(self, peer: str, why: str) -> None:
        self.losses.append(peer)


class Node:
    """One participant with all that it needs, and the thread that drives it."""

    def __init__(
        self, name: str, members: tuple[str, ...], elements: int, streams: int = 1, codec: Codec = PLAIN
    ) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._streams = streams
        self._codec = MessageCodec(members, elements, codec)
        self._accepting = listen("127.0.0.1", PATIENCE_S)
        self.address: tuple[str, int] = self._accepting.getsockname()
        self.inbox = Inbox(self._codec, streams, timeout_s=PATIENCE_S)

    def start(
        self,
        party: Participant,
        partners: tuple[str, ...],
        roster: Mapping[str, tuple[str, int]],
        step: LocalStep,
        tell: Callable[[int], None],
        survives: bool = False,
        generation: int = 0,
    ) -> None:
        self.follow = Follow(tell)
        settings = TransportSettings(
            self.name, keys(self.name, self._codec.members), PATIENCE_S, self._streams, generation=generation
        )
        self.mailbox = Mailbox(settings, self._codec, roster, party.stale, self.inbox)
        self._listener = Listener(self._accepting, settings, self.inbox)
        self._driver = Driver(party, partners, self.mailbox, step, self.follow, PATIENCE_S, survives)
        self._thread = threading.Thread(target=self._run, name=self.name)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._driver.run()
            self.mailbox.outbox.drain(PATIENCE_S)
        except BaseException as error:
            self.error = error
        finally:
            self.mailbox.outbox.close()
            self.inbox.close()
            self._listener.close()

    def kill(self) -> None:
        """End at once, in the middle of whatever it does."""
        self.inbox.put(MemberFailed(SyncError("killed")))

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.name} did not end"


def start(
    parties: Mapping[str, Participant],
    partners: Mapping[str, tuple[str, ...]],
    elements: int,
    step: Callable[[str], LocalStep],
    tell: Callable[[str, int], None] = lambda name, iteration: None,
    streams: int = 1,
    survives: bool = False,
    codec: Codec = PLAIN,
) -> dict[str, Node]:
    nodes = {name: Node(name, tuple(parties), elements, streams, codec) for name in parties}
    roster = {name: node.address for name, node in nodes.items()}
    for name, node in nodes.items():
        node.start(parties[name], partners[name], roster, step(name), lambda k, name=name: tell(name, k), survives)
    return nodes


def around(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Return each member's neighbours, which may send it messages."""
    return {name: tuple({*graph.sources(name), *graph.targets(name)}) for name in graph.members}


def no_change(name: str) -> LocalStep:
    def step(parameters: Tensor, iteration: int) -> Tensor:
        return parameters * 0

    return step
