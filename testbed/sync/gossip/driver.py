"""Carries out a participant's effects over sockets and in real time, with the protocol code that simulations run.

    program (this thread)                carried out by
      Send         -> Mailbox            a thread for each connection, which sends and receives frames
      LocalCompute -> LocalStep          a thread that makes local steps
      Until        <- Inbox              events are handed over one by one, and the condition is checked after each
      Advance      -> IterationReporter  called before anything else is sent, so that no peer knows of it earlier

`Driver.drive` is a generator that yields the time to wait for the next event. `Driver.run` waits for events at the
inbox; tests hand events over at moments of simulated time instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing, suppress
from math import inf

from torch import Tensor

from testbed.sync.clock import SYSTEM, Clock
from testbed.sync.errors import SyncError
from testbed.sync.gossip.effects import Advance, Effect, LocalCompute, Participant, Send, Step, Until
from testbed.sync.gossip.inbox import (
    Event,
    GraphCommitted,
    GraphPrepared,
    LossDue,
    MemberFailed,
    MessageArrived,
    ModelSent,
    PeerCut,
    PeerLost,
    StepFinished,
)
from testbed.sync.gossip.iteration_reporter import IterationReporter
from testbed.sync.gossip.mailbox import Mailbox
from testbed.sync.gossip.message import Message
from testbed.sync.gossip.message_codec import Done
from testbed.sync.gossip.neighbours import Neighbours

#: Seconds from the loss of a peer to its report. Within this time the controller notices a process that has ended. Only
#: the members at the ends of a path know that it was down for too long.
REPORT_LOSS_S = 1.0

#: Makes the local step with a given number from flat parameters, which it must not write to, and returns their change.
LocalStep = Callable[[Tensor, int], Tensor]

#: Yields the seconds to wait for the next event, and is sent the event, or None if no event came in time.
Waits = Generator[float, Event | None, None]


class Driver:
    """Runs one participant's program over sockets: carries out its effects, and hands it messages.

    After its program's end the participant still answers messages, until the programs of all its partners have ended.

    Attributes:
        iteration: The iteration that the member has entered last.
    """

    def __init__(
        self,
        participant: Participant,
        partners: Collection[str],
        mailbox: Mailbox,
        step: LocalStep,
        reporter: IterationReporter,
        patience_s: float,
        survives: bool = False,
        clock: Clock = SYSTEM,
        steps: Executor | None = None,
    ) -> None:
        """Prepare to drive a participant.

        Args:
            participant: The participant whose effects this driver carries out.
            partners: All members that may send messages to the participant.
            mailbox: Sends and receives the participant's messages.
            step: Makes a local step.
            reporter: Reports the member's iterations, promises, waits and lost peers.
            patience_s: The longest wait in seconds for one iteration of another member.
            survives: When a peer is lost, wait for the controller to remove it, instead of raising SyncError at once.
            clock: Measures waits.
            steps: Runs local steps one after the other; None for a thread of this driver.
        """
        self.iteration = 0
        self._survives = survives
        self._gone: dict[str, str] = {}
        self._participant = participant
        self._mailbox = mailbox
        self._inbox = mailbox.inbox
        self._local_step = step
        self._reporter = reporter
        self._patience_s = patience_s * participant.patience
        self._clock = clock
        self._stepping = steps or ThreadPoolExecutor(1, thread_name_prefix=f"{participant.name}: steps")
        self._partners = set(partners)
        self._done: set[str] = set()

    def run(self) -> None:
        """Run the program to its end, and answer messages until the partners' programs have ended.

        Raises:
            SyncError: A peer is lost, or sent nothing in time; names the peer or the wait, and the iteration.
            Exception: Whatever a local step raises.
        """
        event: Event | None = None
        with closing(self.drive()) as waits, suppress(StopIteration):
            while True:
                event = self._inbox.take(waits.send(event))

    def drive(self) -> Waits:
        """Do what `run` does, but leave the waiting to the caller: see Waits."""
        try:
            yield from self._run_program()
            for partner in sorted(self._partners):
                self._mailbox.send(partner, Done())
            # Without a limit: the death of a partner is noticed, and the controller can end the wait.
            yield from self._wait(lambda: self._done >= self._partners, "its partners' end", inf)
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
                self._reporter.advanced(iteration)
        return None

    def _send(self, send: Send) -> None:
        if send.to == self._participant.name:
            self._inbox.put_after(send.after_s, lambda: self._reminder(send))
        else:
            self._mailbox.send(send.to, send.message)

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

    @property
    def _where(self) -> str:
        return f"{self._participant.name}, iteration {self.iteration}"

    def _wait(self, condition: Callable[[], bool], awaited: str, patience_s: float) -> Waits:
        began = self._clock.monotonic()
        while not condition():
            event = yield began + patience_s - self._clock.monotonic()
            if event is None:
                gone = "".join(f"; {peer} is gone ({why})" for peer, why in self._gone.items())
                raise SyncError(
                    f"{self._where}: waited {patience_s:g} s for {awaited}{gone}",
                    rule="timeout",
                    member=self._participant.name,
                    round=self.iteration,
                )
            if isinstance(event, MemberFailed):  # of any type: not to be taken for a ValueError of the participant
                raise event.error
            try:
                self._handle(event, awaited)
            except ValueError as error:
                raise SyncError(
                    f"{self._where}: {error}", rule="participant", member=self._participant.name, round=self.iteration
                ) from error
            if isinstance(event, MessageArrived) and condition():
                self._reporter.waited(max(event.at_s - began, 0.0), event.sender)

    def _handle(self, event: Event, awaited: str) -> None:
        match event:
            case MessageArrived(sender, Done()):
                self._done.add(sender)
            case MessageArrived(sender, message):
                self._receive(sender, message)
            case StepFinished(step, change):
                step.finish(change)
            case ModelSent(peer):
                self._mailbox.left(peer)
            case PeerLost(peer, why):
                self._lost(peer, why, awaited)
            case LossDue(peer):
                if peer in self._gone:
                    self._reporter.lost(peer, self._gone[peer])
            case PeerCut(peer):
                self._cut(peer)
            case GraphPrepared(ahead):
                self._reporter.promised(self._participant.promise(ahead))
            case GraphCommitted(iteration, neighbours, roster):
                self._commit_or_abort(iteration, neighbours, roster)

    def _receive(self, sender: str, message: Message) -> None:
        """Hand a message to the participant. Raises SyncError, naming the sender, if it violates the protocol."""
        try:
            for answer in self._participant.receive(sender, message):
                self._send(answer)
        except SyncError:
            raise
        except Exception as error:
            why = str(error) or repr(error)
            raise SyncError(
                f"{self._where}: {type(message).__name__} from {sender} could not be handled: {why}",
                rule="message",
                member=sender,
            ) from error

    def _lost(self, peer: str, why: str, awaited: str) -> None:
        """Handle the end of a peer's connections. A partner whose program has not ended is lost."""
        if peer not in self._partners - self._done:
            return
        self._gone[peer] = why
        if self._survives:
            self._inbox.put_after(REPORT_LOSS_S, lambda: LossDue(peer))
        else:
            raise SyncError(
                f"{self._where}: {peer} is gone ({why}), while waiting for {awaited}", rule="peer-lost", member=peer
            )

    def _commit_or_abort(
        self, iteration: int, neighbours: Neighbours | None, roster: Mapping[str, tuple[str, int]]
    ) -> None:
        if neighbours is None:
            self._participant.abort()
            return
        for peer, address in roster.items():
            self._gone.pop(peer, None)
            self._mailbox.admit(peer, address)
        self._partners |= {*neighbours.sources, *neighbours.targets}
        for send in self._participant.commit(iteration, neighbours):
            self._send(send)

    def _cut(self, peer: str) -> None:
        self._gone.pop(peer, None)
        self._partners.discard(peer)
        self._done.discard(peer)  # it may join again, and then ends once more
        self._mailbox.drop(peer)
        for send in self._participant.remove(peer):
            self._send(send)
