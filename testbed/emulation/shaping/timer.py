"""The owner's side of the process that sends netlink requests at their moments (`timekeeper`).

netem is in the kernel and cannot change by itself at a given moment.

    NetemShaper --batches--> [ requests by moment ] --netlink, in each namespace--> qdiscs
                <--which were sent, and how late--
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from testbed.emulation.network.netlink import NetlinkRequest
from testbed.emulation.process import await_end, how_it_ended
from testbed.emulation.shaping.base import Applied, ShapingError

ANSWER_TIMEOUT_S = 10.0

_LENGTH = 8


class TimedRequests(NamedTuple):
    """Requests to a link's namespace that are due at a moment of the monotonic clock."""

    due_s: float
    netns: Path
    requests: tuple[NetlinkRequest, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """A message to the timer's process, which carries it out at one instant. 1,300 future states take 400 KB.

    Attributes:
        forget: The links whose queued requests are dropped first.
        coming: The requests to queue after that, by link.
        leave: Namespaces that are no longer used.
    """

    forget: Sequence[str] = ()
    coming: Mapping[str, Sequence[TimedRequests]] = field(default_factory=dict)
    leave: Sequence[Path] = ()


@dataclass(frozen=True, slots=True)
class TimerAnswer:
    """The states that took effect since the timer's last answer, and the kernel's first refusal, if any."""

    applied: Sequence[Applied]
    refusal: str | None


class Timer:
    """The timer's process, for its owner. Raises ShapingError if the process does not answer.

    Such a process is killed: a late answer would be taken for the answer to the next message, and the rest of a
    partly sent batch would never arrive.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._lock = threading.Lock()
        self._unread = 0  # answers that are still to come; an interrupt may have left one unread
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._channel.settimeout(ANSWER_TIMEOUT_S)
        with theirs:
            # In a session of its own, so that Ctrl-C in the terminal does not end it.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "testbed.emulation.shaping.timekeeper", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=environment,
            )
        self.ask(Batch())  # once it answers, it has its priority

    @property
    def realtime(self) -> bool:
        """True if the process has real-time priority."""
        return self._process.poll() is None and os.sched_getscheduler(self._process.pid) == os.SCHED_RR

    def ask(self, batch: Batch) -> TimerAnswer:
        """Carry out a batch at one instant, and return the states that took effect before it."""
        answers: list[TimerAnswer] = []
        with self._lock:
            try:
                send(self._channel, batch)
                self._unread += 1
                while self._unread and isinstance(answer := receive(self._channel), TimerAnswer):
                    self._unread -= 1
                    answers.append(answer)
            except TimeoutError:
                self._process.kill()
                self._process.wait()
                raise ShapingError(
                    f"the process that replays traces did not answer within {ANSWER_TIMEOUT_S:g} s and was killed, "
                    "so traces no longer change links; take the network down and up again",
                    rule="timeout",
                ) from None
            except OSError as error:
                why = f"the process that replays traces does not answer: {error}"
                raise ShapingError(self.failure() or why) from error
            if self._unread:
                raise ShapingError(self.failure() or "the process that replays traces has ended")
        return TimerAnswer([applied for answer in answers for applied in answer.applied], answers[-1].refusal)

    def failure(self) -> str | None:
        """Return why no queued state will take effect; None if all is well."""
        status = self._process.poll()
        return None if status is None else f"the process that replays traces {how_it_ended(status)}"

    def close(self) -> None:
        """Stop the timer's process."""
        self._channel.close()
        await_end(self._process, ANSWER_TIMEOUT_S)


def send(channel: socket.socket, value: object) -> None:
    """Send one pickled value, after its length, over a socket."""
    data = pickle.dumps(value)
    channel.sendall(len(data).to_bytes(_LENGTH) + data)


def receive(channel: socket.socket) -> object:
    """Return the next value that `send` sent over the socket; None if the other end has closed it."""
    head = _exactly(channel, _LENGTH)
    data = head and _exactly(channel, int.from_bytes(head))
    return pickle.loads(data) if data else None  # safe: the other end is our own parent or child


def _exactly(channel: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = channel.recv(count - len(data))
        if not more:
            return b""
        data += more
    return bytes(data)
