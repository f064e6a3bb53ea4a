"""Carries out a participant's effects over sockets and in real time: the protocol code is the one that simulations run.

program (this thread)             others
  Send         -> MessageQueue    a thread for each connection sends and receives frames
  LocalCompute -> LocalStep       a thread makes the local step
  Until        <- Inbox           what came meanwhile is handed over, then the condition looked at again
  Advance      -> IterationObserver  told before anything else is sent, so that nobody learns of it earlier

`Driver.drive` is a generator: it yields how long to wait for the next event. `Driver.run` waits for it at the inbox; a
test hands events over at moments of simulated time instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing
from math import inf
from typing import Protocol

from torch import Tensor

from testbed.sync.clock import SYSTEM, Clock
from testbed.sync.errors import SyncError
from testbed.sync.gossip.effects import Advance, Effect, LocalCompute, Participant, Send, Step, Until
from testbed.sync.gossip.inbox import (
    Event,
    GraphCommitted,
    GraphPrepared,
    MemberFailed,
    MessageArrived,
    ModelSent,
    PeerCut,
    PeerLost,
    StepFinished,
)
from testbed.sync.gossip.message import Message
from testbed.sync.gossip.message_codec import Done
from testbed.sync.gossip.message_queue import Mailbox
from testbed.sync.gossip.neighbours import Neighbours

#: Makes the local step of an iteration: the change to the parameters, which it must not write to.
LocalStep = Callable[[Tensor, int], Tensor]

#: Yields the seconds to wait for the next event, and is sent that event, or None where none came in time.
Waits = Generator[float, Event | None, None]


class IterationObserver(Protocol):
    """Who follows a member."""

    def advanced(self, iteration: int) -> None:
        """It has entered `iteration`."""

    def promised(self, end: int) -> None:
        """It enters no iteration from `end` on until it hears of another graph."""

    def waited(self, seconds: float, peer: str) -> None:
        """It has waited for so long until a message of `peer` let it go on."""


class Driver:
    """Drives `participant`; `partners` are all who may send it anything.

    One whose program has ended still answers, until all of its partners have said that theirs has.
    """

    def __init__(
        self,
        participant: Participant,
        partners: Collection[str],
        mailbox: Mailbox,
        step: LocalStep,
        observer: IterationObserver,
        patience_s: float,
        survives: bool = False,
        clock: Clock = SYSTEM,
        steps: Executor | None = None,
    ) -> None:
        """Prepare to drive a participant.

        Args:
            participant: The participant whose effects this driver carries out.
            partners: All members that may send the participant anything.
            mailbox: Both ways of the participant's messages.
            step: Makes a local step.
            observer: Hears of the member's iterations, promises and waits.
            patience_s: The longest wait in seconds for one of the others' iterations.
            survives: Wait for the controller to cut a lost peer out, instead of raising SyncError at once.
            clock: Measures waits.
            steps: Makes local steps, one after the other; None for a thread of this driver's own.
        """
        self.iteration = 0
        self._survives = survives
        self._gone: dict[str, str] = {}
        self._participant = participant
        self._inbox, self._queue = mailbox.inbox, mailbox.queue
        self._local_step = step
        self._observer = observer
        self._patience_s = patience_s * participant.patience
        self._clock = clock
        self._stepping = steps or ThreadPoolExecutor(1, thread_name_prefix=f"{participant.name}: steps")
        self._partners = set(partners)
        self._done: set[str] = set()

    def run(self) -> None:
        """Runs the program to its end, and answers until the partners have come to theirs.

        SyncError names who is gone, or what was waited for in vain, and the iteration; what a local step raises
        comes out as it is.
        """
        with closing(self.drive()) as waits:
            event: Event | None = None
            while (timeout_s := _next(waits, event)) is not None:
                event = self._inbox.take(timeout_s)

    def drive(self) -> Waits:
        """As `run`, but for the waiting: yield how long to wait for the inbox's next event, and be sent that event."""
        try:
            yield from self._run_program()
            for partner in sorted(self._partners):
                self._queue.send(partner, Done())
            # As long as the slowest takes: who dies meanwhile is noticed, and the controller can end the wait.
            yield from self._wait(lambda: self._done >= self._partners and self._queue.idle, "its partners' end", inf)
        finally:
            self._stepping.shutdown(wait=True, cancel_futures=True)

    def _run_program(self) -> Waits:
        program, answer = self._participant.program(), None
        while True:
            try:
                effect = program.send(answer)
            except StopIteration:
                return
            answer = yield from self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> Generator[float, Event | None, Step | None]:
        match effect:
            case Send():
                self._send(effect)
            case LocalCompute(parameters, iteration):
                return self._begin(parameters, iteration)
            case Until(condition, awaited):
                yield from self._wait(condition, awaited, self._patience_s)
            case Advance(iteration):
                self.iteration = iteration
                self._observer.advanced(iteration)
        return None

    def _send(self, send: Send) -> None:
        if send.to == self._participant.name:
            self._inbox.put_after(send.after_s, lambda: self._reminder(send))
        else:
            self._queue.send(send.to, send.message)

    def _reminder(self, send: Send) -> MessageArrived:
        return MessageArrived(send.to, send.message, self._clock.monotonic())

    def _begin(self, parameters: Tensor, iteration: int) -> Step:
        step = Step()

        def finish(future: Future[Tensor]) -> None:
            if future.cancelled():
                return
            if (error := future.exception()) is not None:
                self._inbox.put(MemberFailed(error))
            else:
                self._inbox.put(StepFinished(step, future.result()))

        self._stepping.submit(self._local_step, parameters, iteration).add_done_callback(finish)
        return step

    def _wait(self, condition: Callable[[], bool], awaited: str, patience_s: float) -> Waits:
        began = self._clock.monotonic()
        while not condition():
            event = yield began + patience_s - self._clock.monotonic()
            where = f"{self._participant.name}, iteration {self.iteration}"
            if event is None:
                gone = "".join(f"; {peer} is gone ({why})" for peer, why in self._gone.items())
                raise SyncError(
                    f"{where}: waited {patience_s:g} s for {awaited}{gone}",
                    rule="timeout",
                    member=self._participant.name,
                    round=self.iteration,
                )
            try:
                self._handle(event, awaited)
            except ValueError as error:
                raise SyncError(
                    f"{where}: {error}",
                    rule="participant",
                    member=self._participant.name,
                    round=self.iteration,
                ) from error
            if isinstance(event, MessageArrived) and condition():
                self._observer.waited(max(event.at_s - began, 0.0), event.sender)

    def _handle(self, event: Event, awaited: str) -> None:
        match event:
            case MessageArrived(sender, Done()):
                self._done.add(sender)
            case MessageArrived(sender, message):
                self._receive(sender, message)
            case StepFinished(step, change):
                step.finish(change)
            case ModelSent(peer):
                self._queue.left(peer)
            case PeerLost(peer, why):
                self._lost(peer, why, awaited)
            case PeerCut(peer):
                self._cut(peer)
            case GraphPrepared(ahead):
                self._observer.promised(self._participant.promise(ahead))
            case GraphCommitted(iteration, neighbours, roster):
                self._turn(iteration, neighbours, roster)
            case MemberFailed(error):
                raise error

    def _receive(self, sender: str, message: Message) -> None:
        """Take a message. SyncError names its sender when it is one that none that works would have sent."""
        try:
            for answer in self._participant.receive(sender, message):
                self._send(answer)
        except SyncError:
            raise
        except Exception as error:
            where = f"{self._participant.name}, iteration {self.iteration}"
            raise SyncError(
                f"{where}: {type(message).__name__} of {sender}: {error or repr(error)}", rule="message", member=sender
            ) from error

    def _lost(self, peer: str, why: str, awaited: str) -> None:
        """A peer's connections have ended: as they should after its `Done`, which may be on its way still."""
        if peer not in self._partners - self._done:
            return
        self._gone[peer] = why
        if not self._survives:
            at = f"{self._participant.name}, iteration {self.iteration}"
            raise SyncError(f"{at}: {peer} is gone ({why}), while waiting for {awaited}", rule="peer-lost", member=peer)

    def _turn(self, iteration: int, neighbours: Neighbours | None, roster: Mapping[str, tuple[str, int]]) -> None:
        if neighbours is None:
            self._participant.abort()
            return
        for peer, address in roster.items():
            self._gone.pop(peer, None)
            self._queue.admit(peer, address)
        self._partners |= {*neighbours.sources, *neighbours.targets}
        for send in self._participant.commit(iteration, neighbours):
            self._send(send)

    def _cut(self, peer: str) -> None:
        self._gone.pop(peer, None)
        self._partners.discard(peer)
        self._queue.drop(peer)
        for send in self._participant.remove(peer):
            self._send(send)


def _next(waits: Waits, event: Event | None) -> float | None:
    """Hand `event` over, and return how long to wait for the one after it; None at the end."""
    try:
        return waits.send(event)
    except StopIteration:
        return None
