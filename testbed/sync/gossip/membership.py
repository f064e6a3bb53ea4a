"""One member's part in decentralized training: its connections, its participant, and its reports to the controller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor

from testbed.protocol import (
    AbortGraph,
    CommitGraph,
    ControlMessage,
    Died,
    Goodbye,
    PrepareGraph,
    checked_metrics,
)
from testbed.sync.codecs import PLAIN, Codec
from testbed.sync.control_connection import ControlConnection
from testbed.sync.control_loop import ControlledMember, ControlLoop
from testbed.sync.errors import SyncError
from testbed.sync.gossip.driver import Driver, LocalStep
from testbed.sync.gossip.effects import Participant
from testbed.sync.gossip.inbox import GraphCommitted, GraphPrepared, Inbox, MemberFailed
from testbed.sync.gossip.iteration_reporter import IterationReporter, StepFigures
from testbed.sync.gossip.message_codec import MessageCodec
from testbed.sync.gossip.message_queue import Mailbox
from testbed.sync.gossip.neighbours import Neighbours
from testbed.sync.rendezvous import Rendezvous
from testbed.sync.transport import Listener


class Membership(ControlledMember):
    """One member of decentralized training, as a context manager; leaving it ends the member's part.

    Attributes:
        name: The member's name.
        job: The run's settings.
    """

    def __init__(
        self,
        met: Rendezvous,
        participant: Participant,
        figures: Callable[[], StepFigures] = StepFigures,
        codec: Codec = PLAIN,
        survives: bool = False,
    ) -> None:
        """Accept connections from peers, and handle the controller's messages.

        Args:
            met: The result of the rendezvous. Its job's assignment is a NodeConfiguration.
            participant: The participant.
            figures: Returns the figures of the local steps since the last call.
            codec: The codec of the tensors that are sent through one.
            survives: Go on without a lost member once the controller says so, instead of failing.

        Raises:
            ValueError: The assignment is malformed.
        """
        self.name, self.job = met.name, met.job
        roster, node = met.welcome.roster, met.node
        settings = met.settings(generation=node.first)
        messages = MessageCodec(tuple(roster), len(participant.model), codec)
        self._participant = participant
        self._partners = node.partners
        self._survives = survives
        self._mailbox = Mailbox(settings, messages, roster, participant.stale)
        connection = met.connection()
        self._reporter = IterationReporter(
            self.name, node.first, self._mailbox, lambda: _with_metrics(figures(), participant), connection.tell
        )
        self._driver: Driver | None = None
        self._listener = Listener(met.accepting, settings, self._mailbox.inbox)
        self._control = GossipControl(self.name, connection, self._mailbox.inbox)

    @property
    def rounds(self) -> int:
        """The number of the iteration that the member has entered last."""
        return self._driver.iteration if self._driver else 0

    def train(self, step: LocalStep) -> Tensor:
        """Run the participant's program to its end, once.

        Args:
            step: Makes a local step: it is called, on a thread of its own, with flat parameters, which it must not
                change, and the number of the step; it returns the change to the parameters, of the same shape.

        Returns:
            The participant's parameters at the end, flat, float32, on the host.

        Raises:
            SyncError: A peer is lost, or did not send in time what the program waits for.
            Stopped: The controller told this member to leave.
            Exception: Whatever `step` raises.
        """
        self._driver = Driver(
            self._participant,
            self._partners,
            self._mailbox,
            step,
            self._reporter,
            self.job.round_timeout_s,
            survives=self._survives,
        )
        self._driver.run()
        return self._participant.model

    def finish(self, digest: str = "", metrics: Mapping[str, float] | None = None) -> None:
        """Leave the run, after the peers have read all that was sent to them.

        Leaving the context without an error calls it too.

        Args:
            digest: The SHA-256 of the parameters, if the controller is to compare it among members.
            metrics: Final figures to keep, up to 64.

        Raises:
            SyncError: A peer did not read all that was sent to it within a round's timeout.
        """
        self._mailbox.queue.drain(self.job.round_timeout_s)
        self._control.goodbye(Goodbye(self.name, self.job.rounds, digest, checked_metrics(metrics or {})))

    def _close(self) -> None:
        self._mailbox.queue.close()
        self._mailbox.inbox.close()
        self._listener.close()


class GossipControl(ControlLoop):
    """Hands the controller's messages over to the driver, through its inbox."""

    def __init__(self, member: str, connection: ControlConnection, inbox: Inbox) -> None:
        """Start to handle messages."""
        super().__init__(member, connection)
        self._inbox = inbox
        self.start()

    def _fail(self, error: SyncError) -> None:
        self._inbox.put(MemberFailed(error))

    def _handle(self, message: ControlMessage) -> None:
        match message:
            case Died(gone):
                self._inbox.cut(gone)
            case PrepareGraph(ahead):
                self._inbox.put(GraphPrepared(ahead))
            case CommitGraph(iteration, place, roster):
                neighbours = Neighbours(self._member, place.sources, place.targets, place.weights)
                self._inbox.turn(GraphCommitted(iteration, neighbours, roster))
            case AbortGraph():
                self._inbox.put(GraphCommitted(0, None))


def _with_metrics(figures: StepFigures, participant: Participant) -> StepFigures:
    return replace(figures, metrics={**figures.metrics, **participant.metrics})
