"""Messages between members on simulated time: each pair's one after the other, all pairs beside each other on links.

small      is there a one-way delay later: it overtakes models, and takes nothing of a link
a model    waits until those before it to the same peer have left, may have become useless meanwhile (`stale`),
           and leaves at the rate that max-min fair sharing gives its pair while links are as they are
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite
from typing import NamedTuple

from testbed.planning import Pair
from testbed.simulation.event_queue import EventQueue
from testbed.simulation.network import NetworkState, SimulatedNetwork
from testbed.simulation.round_model import Transfer
from testbed.sync.gossip.message import Message
from testbed.sync.gossip.message_queue import UNDER_WAY

#: Where nothing gets through, TCP tries again this often.
RETRY_S = 0.2

#: What is left of a model when its last byte has left: sums of products are off by less.
NOTHING_BYTES = 1e-3

#: (sender, receiver, message, later ones that wait for the same receiver): whether nobody needs it any more.
Stale = Callable[[str, str, Message, Sequence[Message]], bool]


class Parcel(NamedTuple):
    """A message, the bytes that it takes, and what to do when it is there."""

    message: Message
    bytes: float
    arrive: Callable[[], None]


@dataclass(slots=True)
class PairQueue:
    """Of a pair: what waits for its turn, what is under way, and how many bytes of the first of that are `left`."""

    waiting: deque[Parcel] = field(default_factory=deque)
    under_way: deque[Parcel] = field(default_factory=deque)
    left: float = 0.0
    began_s: float = 0.0
    rate: float = 0.0


class MessageNetwork:
    """Carries messages over the `network`; `carried` hears of each model that has left: its pair, how, and over what
    network."""

    def __init__(
        self,
        queue: EventQueue,
        network: SimulatedNetwork,
        stale: Stale,
        carried: Callable[[Pair, Transfer, NetworkState], None],
    ) -> None:
        self._queue = queue
        self._network = network
        self._stale = stale
        self._carried = carried
        self._connections: dict[Pair, PairQueue] = {}
        self._leaving: dict[Pair, PairQueue] = {}
        self._at_s = 0.0
        self._state = network.at(0.0)
        self._shared = 0  # how often rates were shared out anew: what was entered for older ones is void

    def send_small(self, pair: Pair, arrive: Callable[[], None]) -> None:
        """What has no tensor goes at once."""
        delay_s = self._network.at(self._queue.clocks.now_s).delay_s(*pair)
        if isfinite(delay_s):
            self._queue.schedule(self._queue.clocks.now_s + delay_s, arrive)
        else:
            self._queue.schedule(self._queue.clocks.now_s + RETRY_S, partial(self.send_small, pair, arrive))

    def send(self, pair: Pair, parcel: Parcel) -> None:
        """A model goes when those before it have left."""
        connection = self._connections.setdefault(pair, PairQueue())
        connection.waiting.append(parcel)
        self._send_on(pair, connection)
        if pair not in self._leaving and connection.under_way:
            self._advance()
            self._begin(pair, connection)
            self._share()

    def refresh(self) -> None:
        """The network may be another one, now or from an event on that was not known before."""
        self._advance()
        self._share()

    def _send_on(self, pair: Pair, connection: PairQueue) -> None:
        """Have models under way, as many as a member has, of those that somebody needs still."""
        while connection.waiting and len(connection.under_way) < UNDER_WAY:
            parcel = connection.waiting.popleft()
            if not self._stale(*pair, parcel.message, [later.message for later in connection.waiting]):
                connection.under_way.append(parcel)

    def _begin(self, pair: Pair, connection: PairQueue) -> None:
        """The first of a pair's models that are under way begins to leave."""
        connection.left = max(connection.under_way[0].bytes, 1.0)
        connection.began_s = self._queue.clocks.now_s
        self._leaving[pair] = connection

    def _advance(self) -> None:
        """Up to now connections have sent at the rates that they had."""
        now_s = self._queue.clocks.now_s
        for connection in self._leaving.values():
            connection.left -= connection.rate * (now_s - self._at_s)
        self._at_s = now_s

    def _share(self) -> None:
        """Share links out among the pairs that send now, and look again when the first is done or a link changes."""
        self._shared += 1
        now_s = self._queue.clocks.now_s
        self._state = self._network.at(now_s)
        limits = self._state.constraints(list(self._leaving))
        rates = max_min(limits.drawn, {name: bps / 8 for name, bps in limits.goodput_bps.items()})
        next_s = self._network.next_change_s(self._state)
        for pair, connection in self._leaving.items():
            connection.rate = rates[pair]
            if connection.rate:
                next_s = min(next_s, now_s + max(connection.left, 0.0) / connection.rate)
        if self._leaving and next_s < inf:
            self._queue.schedule(next_s, partial(self._look, self._shared))

    def _look(self, shared: int) -> None:
        if shared != self._shared:
            return
        self._advance()
        for pair, connection in list(self._leaving.items()):
            if connection.left <= NOTHING_BYTES:
                self._left(pair, connection)
        self._share()

    def _left(self, pair: Pair, connection: PairQueue) -> None:
        """A model has left: it is there when its last byte is."""
        parcel, now_s = connection.under_way.popleft(), self._queue.clocks.now_s
        delay_s = self._state.delay_s(*pair)
        self._queue.schedule(now_s + delay_s, parcel.arrive)
        sent = Transfer(connection.began_s, now_s, connection.began_s + delay_s, now_s + delay_s, parcel.bytes)
        self._carried(pair, sent, self._state)
        self._send_on(pair, connection)
        if connection.under_way:
            self._begin(pair, connection)
        else:
            del self._leaving[pair]


def max_min(drawn: Mapping[Pair, Sequence[str]], capacity: Mapping[str, float]) -> dict[Pair, float]:
    """What each pair gets of the capacities that it draws on: none could have more without one that has no more having
    less (progressive filling)."""
    left = dict(capacity)
    users: dict[str, set[Pair]] = {}
    for pair, names in drawn.items():
        for name in names:
            users.setdefault(name, set()).add(pair)
    rates: dict[Pair, float] = {}
    while users:
        tightest = min(users, key=lambda name: left[name] / len(users[name]))
        share = max(left[tightest], 0.0) / len(users[tightest])
        for pair in list(users[tightest]):
            rates[pair] = share
            for name in drawn[pair]:
                left[name] -= share
                if name in users:
                    users[name].discard(pair)
                    if not users[name]:
                        del users[name]
    return rates
