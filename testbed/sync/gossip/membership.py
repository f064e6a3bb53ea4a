"""One member's part in a decentralized run: its connections, its participant, what it tells the controller."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from types import TracebackType

from torch import Tensor

from testbed.protocol import (
    AbortGraph,
    CommitGraph,
    ControlMessage,
    Died,
    Goodbye,
    NodeConfiguration,
    PrepareGraph,
    Stop,
)
from testbed.sync.codecs import PLAIN, Codec
from testbed.sync.errors import Stopped, SyncError
from testbed.sync.gossip.driver import Driver, LocalStep
from testbed.sync.gossip.effects import Participant
from testbed.sync.gossip.inbox import GraphCommitted, GraphPrepared, MemberFailed
from testbed.sync.gossip.iteration_reporter import IterationReporter, StepFigures
from testbed.sync.gossip.message_codec import MessageCodec
from testbed.sync.gossip.message_queue import Mailbox
from testbed.sync.gossip.neighbours import Neighbours
from testbed.sync.rendezvous import Rendezvous
from testbed.sync.transport import CLOSE_S, Listener

log = logging.getLogger(__name__)


class Membership:
    """A context manager; leaving it by an error says so to the controller.

    `participant` has `elements` parameters, and sends what groups exchange through the `codec`. If it `survives`, who
    is gone may be cut out by the controller's word. ValueError when the job's place is none.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        participant: Participant,
        figures: Callable[[], StepFigures],
        codec: Codec = PLAIN,
        survives: bool = False,
    ) -> None:
        self.name, self.job = rendezvous.name, rendezvous.job
        welcome = rendezvous.welcome
        assignment = NodeConfiguration.from_json(self.job.assignment)
        messages = MessageCodec(tuple(welcome.roster), len(participant.model), codec)
        settings = rendezvous.settings(generation=assignment.first)
        self._participant = participant
        self._partners = assignment.partners
        self._survives = survives
        self._mailbox = Mailbox(settings, messages, welcome.roster, self._participant.stale)
        self._reporter = IterationReporter(
            self.name, assignment.first, self._mailbox, lambda: _told(figures(), participant), self._tell
        )
        self._channel = rendezvous.channel
        self._finished = False
        self._listener = Listener(rendezvous.accepting, settings, self._mailbox.inbox)
        self._control = threading.Thread(target=self._obey, name="control", daemon=True)
        self._control.start()

    def train(self, step: LocalStep) -> Tensor:
        """All iterations; the parameters at their end. SyncError, Stopped, or what `step` raises."""
        driver = Driver(
            self._participant,
            self._partners,
            self._mailbox,
            step,
            self._reporter,
            self.job.round_timeout_s,
            survives=self._survives,
        )
        driver.run()
        return self._participant.model

    def finish(self, digest: str, metrics: dict[str, float]) -> None:
        """Say goodbye, once the peers have read all that was sent to them."""
        self._mailbox.queue.drain(self.job.round_timeout_s)
        self._goodbye(Goodbye(self.name, self.job.rounds, digest, metrics))

    def __enter__(self) -> Membership:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not self._finished:
            self._goodbye(Goodbye.with_error(self.name, 0, f"{kind.__name__}: {error}"))
        self._mailbox.queue.close()
        self._mailbox.inbox.close()
        self._listener.close()
        # The controller closes the channel once it has read the Goodbye. Closed here before that, the channel would
        # fail a message that the controller is sending, and the unread Goodbye would be lost with the connection.
        self._control.join(CLOSE_S)
        self._channel.close()
        self._control.join(CLOSE_S)

    def _goodbye(self, message: Goodbye) -> None:
        self._finished = True
        self._tell(message)

    def _tell(self, message: ControlMessage) -> None:
        """Training does not need the controller, so it goes on without."""
        try:
            self._channel.send(message)
        except OSError as error:
            log.warning("%s: the controller did not get a %s: %s", self.name, message.kind, error)

    def _obey(self) -> None:
        """The control thread: does what the controller asks until the channel closes."""
        try:
            for message in self._messages():
                self._obey_one(message)
        except Exception as error:  # without this thread nobody would hear of a death or the end
            log.exception("%s: can't do what the controller says", self.name)
            self._mailbox.inbox.put(
                MemberFailed(SyncError(f"can't do what the controller says: {error}", rule="controller"))
            )

    def _messages(self) -> Iterator[ControlMessage]:
        with suppress(OSError):  # closed under us: the membership is being left
            while (message := self._channel.receive()) is not None:
                yield message

    def _obey_one(self, message: ControlMessage) -> None:
        match message:
            case Stop(reason):
                self._mailbox.inbox.put(MemberFailed(Stopped(reason)))
            case Died(gone):
                self._mailbox.inbox.cut(gone)
            case PrepareGraph(ahead):
                self._mailbox.inbox.put(GraphPrepared(ahead))
            case CommitGraph(iteration, place, roster):
                neighbours = Neighbours(self.name, place.sources, place.targets, place.weights)
                self._mailbox.inbox.commit(GraphCommitted(iteration, neighbours, roster))
            case AbortGraph():
                self._mailbox.inbox.put(GraphCommitted(0, None))


def _told(figures: StepFigures, participant: Participant) -> StepFigures:
    return replace(figures, metrics={**figures.metrics, **participant.metrics})
