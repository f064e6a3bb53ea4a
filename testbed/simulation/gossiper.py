"""A member that gossips, on simulated time: the program that it runs over sockets, whose effects are carried out here.

Send          a message, as the member would pack it -- MessageNetwork --> its receiver
LocalCompute  its step on the side, done when its declared time is over
Until         resumed by what happens to it, as soon as the condition holds
Advance       told to the controller
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

from testbed.protocol import Report
from testbed.run.errors import RunFailed
from testbed.simulation.event_queue import EventQueue
from testbed.simulation.gossip_account import GossipAccount
from testbed.simulation.gossips import Gossips
from testbed.simulation.messages import MessageNetwork, Parcel
from testbed.simulation.step_thread import StepThread
from testbed.sync.gossip.effects import Advance, Effect, LocalCompute, Participant, Send, Step, Steps, Until
from testbed.sync.gossip.message import Message
from testbed.sync.gossip.message_codec import Done, WireMessage

#: What a member waits for when its own program has ended: as long as the slowest takes.
END = "its partners' end"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A wait that began so many seconds after training did."""

    until: Until
    since_s: float


class Gossiper:
    """Runs one member's program. `peer` finds the others, `tell` hears its reports, `ended` that it is at its end."""

    def __init__(
        self,
        gossips: Gossips,
        queue: EventQueue,
        network: MessageNetwork,
        peer: Callable[[str], Gossiper],
        tell: Callable[[Report], None],
        ended: Callable[[str], None],
    ) -> None:
        self.iteration = 0
        self._its = gossips
        self._queue = queue
        self._network = network
        self._peer = peer
        self._ended = ended
        self._program = self._whole()
        self._waiting: Waiting | None = None
        self._steps = StepThread(gossips, queue)
        self._account = GossipAccount(gossips, queue.clocks, tell)
        self._done: set[str] = set()

    @property
    def participant(self) -> Participant:
        """Who decides what it does."""
        return self._its.participant

    @property
    def name(self) -> str:
        """The member's."""
        return self._its.participant.name

    def resume(self, answer: Step | None = None) -> None:
        """Go on until it waits for something: from its first iteration on, when training begins."""
        try:
            while True:
                effect = self._program.send(answer)
                if isinstance(effect, Until) and not effect.condition():
                    self._wait(effect)
                    return
                answer = self._carry_out(effect)
        except StopIteration:
            self._ended(self.name)

    def arrive(self, sender: str, packed: WireMessage) -> None:
        """A message is there. The memory that it was sent from is its sender's."""
        message = self._its.codec.unpack(packed._replace(body=memoryview(bytearray(packed.body))))
        if isinstance(message, Done):
            self._done.add(sender)
        else:
            self._account.received(packed)
            self._take(sender, message)
        self._look(sender)

    def close(self) -> None:
        """It takes no more steps."""
        self._steps.close()

    def _whole(self) -> Steps[None]:
        """Its program; it then answers until its partners have come to the end of theirs."""
        partners = set(self._its.place.partners)
        yield from self.participant.program()
        for partner in sorted(partners):
            yield Send(partner, Done())
        yield Until(lambda: self._done >= partners, END)

    def _carry_out(self, effect: Effect) -> Step | None:
        match effect:
            case Send() as send:
                self._send(send)
            case LocalCompute(parameters, iteration):
                return self._steps.begin(parameters, iteration, self._stepped)
            case Advance(iteration):
                self.iteration = iteration
                self._account.advanced(iteration)
        return None

    def _wait(self, until: Until) -> None:
        self._waiting = waiting = Waiting(until, self._queue.clocks.now_s)
        patience_s = inf if until.awaited == END else self._its.patience_s * self.participant.patience
        if patience_s < inf:
            self._queue.schedule(waiting.since_s + patience_s, partial(self._fail_if, waiting, patience_s))

    def _fail_if(self, waiting: Waiting, patience_s: float) -> None:
        if waiting is self._waiting:
            at = f"{self.name}, iteration {self.iteration}"
            raise RunFailed(f"{at}: waited {patience_s:g} s for {waiting.until.awaited}")

    def _look(self, sender: str = "") -> None:
        """Something has happened to it: go on if that is what it waited for."""
        waiting = self._waiting
        if waiting is not None and waiting.until.condition():
            self._waiting = None
            self._account.waited(sender, self._queue.clocks.now_s - waiting.since_s)
            self.resume()

    def _stepped(self, step: Step) -> None:
        self._account.stepped(self._steps.spent)
        self._look()

    def _take(self, sender: str, message: Message) -> None:
        for answer in self.participant.receive(sender, message):
            self._send(answer)

    def _send(self, send: Send) -> None:
        if send.to == self.name:
            self._queue.schedule(self._queue.clocks.now_s + send.after_s, partial(self._remind, send.message))
            return
        packed = self._its.codec.pack(send.message)
        arrive = partial(self._peer(send.to).arrive, self.name, packed)
        self._account.sent(packed)
        if packed.large:
            self._network.send((self.name, send.to), Parcel(send.message, self._its.bytes_of(packed), arrive))
        else:
            self._network.send_small((self.name, send.to), arrive)

    def _remind(self, message: Message) -> None:
        """What it gave to itself."""
        self._take(self.name, message)
        self._look()
