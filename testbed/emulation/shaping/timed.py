"""Netlink requests that are sent at their moments, by a process of their own: `python -m …shaping.timed DESCRIPTOR`.

Beside netem, which is in the kernel, nothing of the shaper's runs by itself; here is what puts states in force at their
time, with nothing else to do and in front of ordinary processes.

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
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from testbed.emulation.netlink import Netlink, Request
from testbed.emulation.shaping.base import Applied, ShapingError

#: The real-time round-robin class, so that a busy host's workers do not delay a change; the lowest priority of it.
REALTIME_PRIORITY = 1

#: What a batch may have: some 1,300 states ahead are 400 KB.
MESSAGE_BYTES = 8 << 20
ANSWER_TIMEOUT_S = 10.0

_LENGTH = 8


class Timed(NamedTuple):
    """Requests to a link's namespace that are due at a moment of the monotonic clock."""

    due_s: float
    netns: Path
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """What is to be forgotten, by link, what is to come after that, and namespaces that are of no use any more."""

    forget: Sequence[str] = ()
    coming: Mapping[str, Sequence[Timed]] = field(default_factory=dict)
    leave: Sequence[Path] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What came to be in force since the last answer; `refusal` is the first of the kernel's, if there was one."""

    applied: Sequence[Applied]
    refusal: str | None


class Timer:
    """The process, as its owner sees it. ShapingError when it does not answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._channel.settimeout(ANSWER_TIMEOUT_S)
        with theirs:
            # In a session of its own: an interrupt from the terminal is for us.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "testbed.emulation.shaping.timed", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.ask(Batch())  # it is there, with its priority

    @property
    def realtime(self) -> bool:
        """Whether it goes in front of all ordinary processes."""
        return self._process.poll() is None and os.sched_getscheduler(self._process.pid) == os.SCHED_RR

    def ask(self, batch: Batch) -> Answer:
        """Have a batch done at one instant; what was in force before it."""
        with self._lock:
            try:
                _send(self._channel, batch)
                answer = _receive(self._channel)
            except OSError as error:
                raise ShapingError(self.failure() or f"the process that replays does not answer: {error}") from error
        if not isinstance(answer, Answer):
            raise ShapingError(self.failure() or "the process that replays has gone")
        return answer

    def failure(self) -> str | None:
        """Why nothing that is to come will; None while all is well."""
        status = self._process.poll()
        return None if status is None else f"the process that replays traces ended with status {status}"

    def close(self) -> None:
        """End it."""
        self._channel.close()
        try:
            self._process.wait(ANSWER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _send(channel: socket.socket, value: object) -> None:
    data = pickle.dumps(value)
    channel.sendall(len(data).to_bytes(_LENGTH) + data)


def _receive(channel: socket.socket) -> object:
    """The next message; None at the end."""
    head = _exactly(channel, _LENGTH)
    if not head or (length := int.from_bytes(head)) > MESSAGE_BYTES:
        return None
    return pickle.loads(_exactly(channel, length))  # from our own parent


def _exactly(channel: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = channel.recv(count - len(data))
        if not more:
            return b""
        data += more
    return bytes(data)


class _Process:
    """The process itself: one loop that waits for the next moment, or for its owner."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._coming: dict[str, deque[Timed]] = {}
        self._sockets: dict[Path, Netlink] = {}
        self._applied: list[Applied] = []
        self._refusal: str | None = None

    def run(self) -> None:
        """Until its owner has gone."""
        while True:
            due_s = min((coming[0].due_s for coming in self._coming.values() if coming), default=None)
            left_s = None if due_s is None else max(due_s - time.monotonic(), 0.0)
            self._channel.settimeout(left_s)
            if left_s == 0.0 or not self._wait():
                self._apply(time.monotonic())
                continue
            self._channel.settimeout(ANSWER_TIMEOUT_S)
            batch = _receive(self._channel)
            if not isinstance(batch, Batch):
                return
            self._take(batch)

    def _wait(self) -> bool:
        """Whether the owner says something, or has gone, before the next moment."""
        try:
            self._channel.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return False
        return True

    def _take(self, batch: Batch) -> None:
        self._apply(time.monotonic())  # what was due before it comes before it
        for link in batch.forget:
            self._coming.pop(link, None)
        for netns in batch.leave:
            if (netlink := self._sockets.pop(netns, None)) is not None:
                netlink.close()
        for link, coming in batch.coming.items():
            self._coming.setdefault(link, deque()).extend(coming)
        applied, self._applied = self._applied, []
        _send(self._channel, Answer(applied, self._refusal))

    def _apply(self, now: float) -> None:
        """Send what is due, all of a namespace at once."""
        due: dict[Path, list[tuple[str, Timed]]] = {}
        for link, coming in self._coming.items():
            while coming and coming[0].due_s <= now:
                timed = coming.popleft()
                due.setdefault(timed.netns, []).append((link, timed))
        for netns, its in due.items():
            try:
                if netns not in self._sockets:
                    self._sockets[netns] = Netlink(netns)
                self._sockets[netns].apply(*(request for _, timed in its for request in timed.requests))
            except OSError as error:
                self._refusal = self._refusal or f"the kernel refused to change a link in {netns}: {error.strerror}"
            done = time.monotonic()
            self._applied += [Applied(link, timed.due_s, done - timed.due_s) for link, timed in its]


def _ask_for_realtime() -> None:
    """Real-time scheduling where the host grants it, else a higher priority, else neither: lateness is recorded."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(REALTIME_PRIORITY))
    except PermissionError:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, -15)


if __name__ == "__main__":
    _ask_for_realtime()
    with socket.socket(fileno=int(sys.argv[1])) as owner:
        _Process(owner).run()
