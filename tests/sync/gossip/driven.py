"""Members that gossip on simulated time: drivers, inboxes, message queues and codecs, without threads or sockets.

Connections carry the frames that sockets would, each in order, at a rate and after a delay. A seed draws how long steps
take, how late frames come and how late a member wakes up, so that each seed is another interleaving.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf
from random import Random
from typing import Any

from torch import Tensor

from testbed.protocol import PeerSample
from testbed.sync.codecs import PLAIN, Codec
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.gossip.driver import Driver
from testbed.sync.gossip.effects import Participant
from testbed.sync.gossip.inbox import Event, Inbox, Incoming
from testbed.sync.gossip.mailbox import Mailbox
from testbed.sync.gossip.message_codec import MessageCodec
from testbed.sync.transport import DIRECT, Frame, Greeting, Outbox, Received, TransportSettings
from testbed.sync.transport.send_queue import Priority
from tests.sync.gossip.loopback import Follow
from tests.sync.simulated_time import SimulatedTime

#: Simulated seconds that a member waits for another one.
PATIENCE_S = 20.0
#: Seconds within which a thread that is woken runs.
WAKING_S = 0.001
ADDRESS = ("10.0.0.1", 4000)

Change = Callable[[str, int, Tensor], Tensor]


def no_change(name: str, iteration: int, parameters: Tensor) -> Tensor:
    return parameters * 0


@dataclass
class Network:
    """The seconds of members' steps, and the seconds and the bytes a second of paths."""

    draw: Random
    step_s: Callable[[str, int], float] = lambda name, iteration: 0.003
    delay_s: Callable[[str, str], float] = lambda source, target: 0.001
    rate: Callable[[str, str], float] = lambda source, target: inf


def rough(seed: int) -> Network:
    """Return a network with steps of 1 to 20 ms, a tenth of them slow, and paths of up to 5 ms."""
    draw = Random(seed)
    return Network(
        draw,
        step_s=lambda name, iteration: draw.uniform(0.015, 0.02) if draw.random() < 0.1 else draw.uniform(0.001, 0.004),
        delay_s=lambda source, target: draw.uniform(0, 0.005),
    )


class Connection:
    """One member's connection to another: frames leave by priority, one at a time, and arrive in that order."""

    def __init__(self, world: World, source: DrivenMember, target: str, on_failure: Callable[[str, str], None]) -> None:
        self._world = world
        self._source = source
        self._target = target
        self._on_failure = on_failure
        self._waiting: list[tuple[Priority, int, Frame, memoryview, Callable[[], None]]] = []
        self._number = count()
        self._sending = self._ending = self._ended = False
        self._arrives_s = 0.0
        self._incoming: Incoming | None = None

    def put(self, priority: Priority, frame: Frame, payload: memoryview, sent: Callable[[], None]) -> None:
        heapq.heappush(self._waiting, (priority, next(self._number), frame, payload, sent))
        self._go_on()

    def finish(self) -> None:
        """Close once all is sent."""
        self._ending = True
        self._go_on()

    def abort(self) -> None:
        """End at once. Frames on their way may still arrive, up to a moment."""
        self._waiting.clear()
        self._ending = True
        self._arrives_s = min(self._arrives_s, self._world.time.now_s + self._delay_s())
        self._world.time.queue.schedule(self._arrives_s, partial(self._close, "connection reset"))

    def _go_on(self) -> None:
        if self._sending or self._ended:
            return
        if self._waiting:
            self._sending = True
            _, _, frame, payload, sent = heapq.heappop(self._waiting)
            seconds = (len(frame.header) + len(payload)) / self._world.network.rate(self._source.name, self._target)
            self._world.time.call_later(seconds, partial(self._leave, frame, payload, sent))
        elif self._ending:
            self._world.time.queue.schedule(self._arrives_s, partial(self._close, ""))

    def _leave(self, frame: Frame, payload: memoryview, sent: Callable[[], None]) -> None:
        self._sending = False
        if self._ended:
            return
        self._arrives_s = max(self._arrives_s, self._world.time.now_s + self._delay_s())
        self._world.time.queue.schedule(self._arrives_s, partial(self._arrive, frame, bytes(payload)))
        sent()
        self._go_on()

    def _arrive(self, frame: Frame, payload: bytes) -> None:
        if self._ended:
            return
        target = self._world.members[self._target]
        if target.over:
            self._fail("connection reset by peer")
            return
        try:
            if self._incoming is None:
                greeting = Greeting(self._source.name, DIRECT, 0, self._source.generation)
                self._incoming = target.inbox.receiver(greeting)
            self._incoming.take(Received(self._source.name, frame, memoryview(payload), len(payload), 0.0))
        except FrameError as error:
            self._close(str(error))
            self._fail(str(error))

    def _close(self, error: str) -> None:
        """End the connection at the other end."""
        ended, self._ended = self._ended, True
        if self._incoming is not None and not ended:
            self._incoming.closed(self._source.name, DIRECT, error)

    def _fail(self, why: str) -> None:
        """End the connection at this end."""
        self._ended = True
        self._world.time.call_later(self._delay_s(), partial(self._on_failure, self._target, why))

    def _delay_s(self) -> float:
        return self._world.network.delay_s(self._source.name, self._target)


class SimulatedOutbox(Outbox):
    """A member's connections, made as they are first used."""

    def __init__(
        self,
        world: World,
        member: DrivenMember,
        settings: TransportSettings,
        header_bytes: int,
        roster: Mapping[str, tuple[str, int]],
        on_failure: Callable[[str, str], None],
    ) -> None:
        self._connect = lambda peer: Connection(world, member, peer, on_failure)
        self._connections: dict[str, Connection] = {}

    def put(
        self,
        peers: Iterable[str],
        priority: Priority,
        frame: Frame,
        payload: memoryview,
        sent: Callable[[str], None],
        table: int | None = None,
    ) -> None:
        for peer in peers:
            if peer not in self._connections:
                self._connections[peer] = self._connect(peer)
            self._connections[peer].put(priority, frame, payload, partial(sent, peer))

    def drop(self, peer: str) -> None:
        if connection := self._connections.pop(peer, None):
            connection.abort()

    def drain(self, timeout_s: float, await_channel: Callable[[int, float], None] | None = None) -> tuple[str, ...]:
        for connection in self._connections.values():
            connection.finish()
        return ()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.abort()

    def samples(self) -> tuple[PeerSample, ...]:
        return ()

    def sending_s(self) -> float:
        return 0.0


class SimulatedSteps(Executor):
    """Makes a member's steps one after the other, each in the time that the network's figures say."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._free_s = 0.0

    def submit(self, step: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        began_s = max(self._free_s, self._world.time.now_s)
        self._free_s = began_s + self._world.network.step_s(self._name, arguments[1])
        self._world.time.queue.schedule(self._free_s, lambda: _finish(future, partial(step, *arguments, **named)))
        return future


def _finish(future: Future[Any], step: Callable[[], Any]) -> None:
    try:
        result = step()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)


class WakingInbox(Inbox):
    """Says when there is an event to take."""

    def __init__(self, wake: Callable[[], None], *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._wake = wake

    def put(self, event: Event) -> None:
        super().put(event)
        self._wake()


class DrivenMember:
    """One participant with all that it needs to be driven."""

    def __init__(
        self,
        world: World,
        participant: Participant,
        partners: Collection[str],
        codec: MessageCodec,
        survives: bool,
        generation: int,
    ) -> None:
        self.name = participant.name
        self.generation = generation
        self.over = False
        self.error: BaseException | None = None
        self.ended_s = inf
        self.follow = Follow(lambda iteration: world.advanced(self.name, iteration))
        self._world = world
        self.inbox = WakingInbox(self._wake, codec, 1, generation, PATIENCE_S, world.time)
        settings = TransportSettings(self.name, {}, PATIENCE_S, generation=generation)
        roster = dict.fromkeys(codec.members, ADDRESS)
        make_outbox = partial(SimulatedOutbox, world, self)
        self.mailbox = Mailbox(settings, codec, roster, participant.stale, self.inbox, make_outbox)
        self._waits = Driver(
            participant,
            partners,
            self.mailbox,
            partial(self._step, world.change),
            self.follow,
            PATIENCE_S,
            survives,
            world.time,
            SimulatedSteps(world, self.name),
        ).drive()
        self._waiting = 0
        self._begun = self._waking = False

    def begin(self) -> None:
        self._begun = True
        self._resume(None)
        self._wake()

    def kill(self) -> None:
        """End at once, in the middle of whatever it does."""
        if not self.over:
            self._end(SyncError("killed"))

    def _step(self, change: Change, parameters: Tensor, iteration: int) -> Tensor:
        return change(self.name, iteration, parameters)

    def _wake(self) -> None:
        if self._begun and not self._waking:
            self._waking = True
            self._world.time.call_later(self._world.network.draw.uniform(0, WAKING_S), self._look)

    def _look(self) -> None:
        self._waking = False
        while not self.over and (event := self.inbox.take(0.0)) is not None:
            self._resume(event)

    def _resume(self, event: Event | None) -> None:
        try:
            timeout_s = self._waits.send(event)
        except StopIteration:
            self._end(None)
        except Exception as error:
            self._end(error)
        else:
            self._waiting += 1
            if timeout_s < inf:
                self._world.time.call_later(max(timeout_s, 0.0), partial(self._out_of_time, self._waiting))

    def _out_of_time(self, waiting: int) -> None:
        if waiting == self._waiting and not self.over:
            self._resume(None)

    def _end(self, error: BaseException | None) -> None:
        self.over, self.error, self.ended_s = True, error, self._world.time.now_s
        if error is None:
            self.mailbox.outbox.drain(PATIENCE_S)
        else:
            self.mailbox.outbox.close()


@dataclass
class World:
    """Members and what connects them. `advanced` hears of the iterations that they enter."""

    network: Network
    change: Change = no_change
    advanced: Callable[[str, int], None] = lambda name, iteration: None
    time: SimulatedTime = field(default_factory=SimulatedTime)
    members: dict[str, DrivenMember] = field(default_factory=dict)

    def start(
        self,
        participants: Mapping[str, Participant],
        partners: Mapping[str, Collection[str]],
        elements: int,
        codec: Codec = PLAIN,
        survives: bool = False,
    ) -> None:
        """Have members begin, each at a moment of its own."""
        self._codec = MessageCodec(tuple(participants), elements, codec)
        for name, participant in participants.items():
            self.members[name] = DrivenMember(self, participant, partners[name], self._codec, survives, 0)
        for member in self.members.values():
            self.later(member.begin)

    def come(self, participant: Participant, partners: Collection[str], generation: int) -> None:
        """Let a member join, perhaps again, while others train."""
        member = DrivenMember(self, participant, partners, self._codec, True, generation)
        self.members[member.name] = member
        self.later(member.begin)

    def later(self, call: Callable[[], None], most_s: float = 0.01) -> None:
        """Have something happen soon."""
        self.time.call_later(self.network.draw.uniform(0, most_s), call)

    def run(self) -> None:
        """Play to the end of all members. Raises AssertionError where one waits for ever."""
        self.time.play(lambda: all(member.over for member in self.members.values()), self._state)

    def errors(self) -> dict[str, BaseException]:
        return {name: member.error for name, member in self.members.items() if member.error}

    def _state(self) -> str:
        return str({name: member.follow.entered[-1:] for name, member in self.members.items() if not member.over})


class Controller:
    """Kills members as they enter an iteration, and has the others go on; one of them may come again."""

    def __init__(self, world: World, dying: dict[str, int]) -> None:
        self.died: list[str] = []
        self._world = world
        self._dying = dict(dying)
        world.advanced = self._advanced

    def others(self) -> list[DrivenMember]:
        return [member for name, member in self._world.members.items() if name not in self.died]

    def cut(self, member: DrivenMember, dead: str) -> None:
        member.inbox.cut(dead)

    def _advanced(self, name: str, iteration: int) -> None:
        if name in self._dying and iteration >= self._dying[name]:
            del self._dying[name]
            self._world.later(lambda: self._kill(name), 0.004)

    def _kill(self, name: str) -> None:
        self._world.members[name].kill()
        self.died.append(name)
        for member in self.others():
            self._world.later(lambda member=member: self.cut(member, name))
