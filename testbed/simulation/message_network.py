"""Messages between members that gossip, over the simulated network.

A small message, one without a tensor, arrives one one-way delay later, once the links carry packets. It overtakes
models, and takes no capacity of a link.

A model, which is any message with a tensor, waits until those before it to the same peer have left, and may become
stale meanwhile. It leaves at its pair's max-min fair rate. Rates are shared again when a model begins to leave or has
left, or when a link changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import NamedTuple

from testbed.planning import Pair
from testbed.planning.events import max_min
from testbed.simulation.event_queue import EventQueue
from testbed.simulation.network import NetworkState, SimulatedNetwork
from testbed.simulation.round_model import Transfer
from testbed.sync.gossip.mailbox import UNDER_WAY
from testbed.sync.gossip.message import Message

#: The interval at which TCP tries again where there is no route, or a link on it loses all packets.
RETRY_S = 0.2

#: A model has left when at most this many bytes remain: sums of products are off by less.
NOTHING_BYTES = 1e-3

#: (sender, receiver, message, later ones for the same receiver): returns whether the message has become useless.
IsStale = Callable[[str, str, Message, Sequence[Message]], bool]

#: Called with each model that has left: its pair, its transfer, and the network that it left over.
OnTransfer = Callable[[Pair, Transfer, NetworkState], None]


class QueuedMessage(NamedTuple):
    """A message, its size in bytes, and the call to make when it arrives."""

    message: Message
    bytes: float
    arrive: Callable[[], None]


@dataclass(slots=True)
class PairQueue:
    """The models on their way from one member to another, in order."""

    waiting: deque[QueuedMessage] = field(default_factory=deque)
    #: The models given to the connection; the first one is leaving.
    under_way: deque[QueuedMessage] = field(default_factory=deque)
    #: For the first model: the bytes that remain, when it began to leave, and its rate in bytes/s.
    remaining: float = 0.0
    began_s: float = 0.0
    rate: float = 0.0


class MessageNetwork:
    """Carries messages: those of a pair one after the other, those of all pairs side by side on the links."""

    def __init__(
        self, queue: EventQueue, network: SimulatedNetwork, is_stale: IsStale, on_transfer: OnTransfer
    ) -> None:
        self._queue = queue
        self._network = network
        self._is_stale = is_stale
        self._on_transfer = on_transfer
        self._pairs: dict[Pair, PairQueue] = {}
        self._leaving: dict[Pair, PairQueue] = {}
        self._at_s = 0.0
        self._state = network.at(0.0)
        self._shared = 0  # counts how often rates were shared; a call scheduled for an older count is void

    def send_small(self, pair: Pair, arrive: Callable[[], None]) -> None:
        """Send a message without a tensor, at once."""
        now_s = self._queue.clocks.now_s
        state = self._network.at(now_s)
        if state.carries(*pair):
            self._queue.schedule(now_s + state.delay_s(*pair), arrive)
        else:
            self._queue.schedule(now_s + RETRY_S, partial(self.send_small, pair, arrive))

    def send(self, pair: Pair, queued: QueuedMessage) -> None:
        """Send a model, after those before it to the same peer."""
        models = self._pairs.setdefault(pair, PairQueue())
        models.waiting.append(queued)
        self._fill(pair, models)
        if pair not in self._leaving and models.under_way:
            self._advance()
            self._begin(pair, models)
            self._share()

    def refresh(self) -> None:
        """Share the links' rates again: the network has changed, or a new event is scheduled that will change it."""
        self._advance()
        self._share()

    def _fill(self, pair: Pair, models: PairQueue) -> None:
        """Give the connection as many models as a member does, without those that are stale."""
        while models.waiting and len(models.under_way) < UNDER_WAY:
            queued = models.waiting.popleft()
            if not self._is_stale(*pair, queued.message, [later.message for later in models.waiting]):
                models.under_way.append(queued)

    def _begin(self, pair: Pair, models: PairQueue) -> None:
        models.remaining = max(models.under_way[0].bytes, 1.0)
        models.began_s = self._queue.clocks.now_s
        self._leaving[pair] = models

    def _advance(self) -> None:
        """Subtract the bytes that left since the last call, at the rates until now."""
        now_s = self._queue.clocks.now_s
        for models in self._leaving.values():
            models.remaining -= models.rate * (now_s - self._at_s)
        self._at_s = now_s

    def _share(self) -> None:
        """Share the links among the pairs that send, and look again when the first model has left or a link changes."""
        self._shared += 1
        now_s = self._queue.clocks.now_s
        self._state = self._network.at(now_s)
        limits = self._state.constraints(list(self._leaving))
        rates = max_min(limits.drawn, {name: bps / 8 for name, bps in limits.goodput_bps.items()})
        next_s = self._network.next_change_s(self._state)
        for pair, models in self._leaving.items():
            models.rate = rates[pair]
            if models.rate:
                next_s = min(next_s, now_s + max(models.remaining, 0.0) / models.rate)
        if self._leaving and next_s < inf:
            self._queue.schedule(next_s, partial(self._look, self._shared))

    def _look(self, shared: int) -> None:
        if shared != self._shared:
            return
        self._advance()
        now_s = self._queue.clocks.now_s
        for pair, models in list(self._leaving.items()):
            # On a fast link the clock may be too coarse for the rest: nothing is sent between now and the next moment.
            if models.remaining <= NOTHING_BYTES or (models.rate and now_s + models.remaining / models.rate <= now_s):
                self._end(pair, models)
        self._share()

    def _end(self, pair: Pair, models: PairQueue) -> None:
        """End the first model under way: its last byte has left. Begin with the next one."""
        queued, now_s = models.under_way.popleft(), self._queue.clocks.now_s
        delay_s = self._state.delay_s(*pair)
        self._queue.schedule(now_s + delay_s, queued.arrive)
        sent = Transfer(models.began_s, now_s, models.began_s + delay_s, now_s + delay_s, queued.bytes)
        self._on_transfer(pair, sent, self._state)
        self._fill(pair, models)
        if models.under_way:
            self._begin(pair, models)
        else:
            del self._leaving[pair]
