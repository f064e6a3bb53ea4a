"""One member's part in a decentralized run: its connections, its party, what it tells the controller."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

from torch import Tensor

from testbed.protocol import Ask, Died, Goodbye, Message, Place, ProtocolError, Release, Stop, Turn
from testbed.sync.codecs import PLAIN, by_name
from testbed.sync.decentralized.account import Account, StepFigures
from testbed.sync.decentralized.bridge import SiteLeader, SiteWorker
from testbed.sync.decentralized.driver import Driver, LocalStep
from testbed.sync.decentralized.hop import HopMember
from testbed.sync.decentralized.inbox import Asked, Failed, Gone, Inbox, Sent, Turned
from testbed.sync.decentralized.letters import Letters
from testbed.sync.decentralized.neighbours import Neighbours
from testbed.sync.decentralized.parties import final_parameters, make_party
from testbed.sync.decentralized.post import Post
from testbed.sync.errors import Stopped
from testbed.sync.listener import CLOSE_S, Listener
from testbed.sync.meeting import Meeting
from testbed.sync.sender import Way

log = logging.getLogger(__name__)


class Membership:
    """A context manager; leaving it by an error says so to the controller.

    `start` are the parameters to begin with, flat float32 on the host: the same at all members. `samples` are how many
    each of the members learns from, in their order. ValueError when the job's place is none.
    """

    def __init__(
        self, meeting: Meeting, start: Tensor, figures: Callable[[], StepFigures], samples: Sequence[float] = ()
    ) -> None:
        self.name, self.job = meeting.name, meeting.job
        job, welcome = meeting.job, meeting.welcome
        members = tuple(welcome.roster)
        place = Place.from_json(job.assignment)
        letters = Letters(members, len(start), by_name(place.rules.get("codec", PLAIN.name)))
        way = Way(self.name, welcome.secret, job.round_timeout_s, job.streams, job.congestion, era=place.first)
        self._party = make_party(self.name, members, place, start, job.rounds, job.seed, samples)
        self._partners = place.partners
        self._inbox = Inbox(letters, job.streams)
        self._post = Post(
            way,
            letters,
            welcome.roster,
            stale=self._party.stale,
            on_sent=lambda peer: self._inbox.put(Sent(peer)),
            on_failure=self._undelivered,
        )
        self._account = Account(self.name, place.first, self._post, self._inbox, figures, self._tell)
        self._channel = meeting.channel
        self._finished = False
        self._listener = Listener(meeting.accepting, welcome.secret, self._inbox)
        self._control = threading.Thread(target=self._obey, name="control", daemon=True)
        self._control.start()

    def train(self, step: LocalStep) -> Tensor:
        """All iterations; the parameters at their end. SyncError, Stopped, or what `step` raises."""
        driver = Driver(
            self._party,
            self._partners,
            self._inbox,
            self._post,
            step,
            self._account,
            self.job.round_timeout_s,
            survives=isinstance(self._party, HopMember | SiteLeader | SiteWorker),
        )
        driver.run()
        return final_parameters(self._party)

    def finish(self, digest: str, metrics: dict[str, float]) -> None:
        """Say goodbye, once the peers have read all that was sent to them."""
        self._post.drain(self.job.round_timeout_s)
        self._goodbye(Goodbye(self.name, self.job.rounds, digest, metrics))

    def __enter__(self) -> Membership:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not self._finished:
            self._goodbye(Goodbye(self.name, 0, error=f"{kind.__name__}: {error}"))
        self._post.close()
        self._listener.close()
        self._channel.close()
        self._control.join(CLOSE_S)

    def _undelivered(self, peer: str, reason: str) -> None:
        self._inbox.put(Gone(peer, f"can't send to it: {reason}"))

    def _goodbye(self, message: Goodbye) -> None:
        self._finished = True
        self._tell(message)

    def _tell(self, message: Message) -> None:
        """Training does not need the controller, so it goes on without."""
        try:
            self._channel.send(message)
        except OSError as error:
            log.warning("%s: the controller did not get a %s: %s", self.name, message.kind, error)

    def _obey(self) -> None:
        """The control thread: does what the controller asks until the channel closes."""
        with suppress(OSError, ValueError):  # closed under us: the membership is being left
            while True:
                try:
                    message = self._channel.receive()
                except ProtocolError as error:
                    log.warning("%s: ignored what the controller said: %s", self.name, error)
                    continue
                if message is None:
                    return
                self._obey_one(message)

    def _obey_one(self, message: Message) -> None:
        match message:
            case Stop(reason):
                self._inbox.put(Failed(Stopped(reason)))
            case Died(gone):
                self._inbox.cut(gone)
            case Ask(ahead):
                self._inbox.put(Asked(ahead))
            case Turn(iteration, place, roster):
                there = Place.from_json(place)
                neighbours = Neighbours(self.name, there.sources, there.targets, there.weights)
                self._inbox.turn(Turned(iteration, neighbours, roster))
            case Release():
                self._inbox.put(Turned(0, None))
