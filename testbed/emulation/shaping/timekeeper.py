"""Sends netlink requests at their moments: `python -m testbed.emulation.shaping.timekeeper SOCKET`.

This process does nothing else and has real-time priority; `timer` has its messages.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from testbed.emulation.network.netlink import Netlink
from testbed.emulation.shaping.base import Applied
from testbed.emulation.shaping.timer import ANSWER_TIMEOUT_S, Batch, TimedRequests, TimerAnswer, receive, send

#: The lowest priority of the real-time round-robin class, so that a busy host's workers do not delay a change.
REALTIME_PRIORITY = 1


class Timekeeper:
    """A loop that waits for the next moment or the next message."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._coming: dict[str, deque[TimedRequests]] = {}
        self._sockets: dict[Path, Netlink] = {}
        self._applied: list[Applied] = []
        self._refusal: str | None = None

    def run(self) -> None:
        """Run until the owner has gone."""
        while True:
            due_s = min((coming[0].due_s for coming in self._coming.values() if coming), default=None)
            left_s = None if due_s is None else max(due_s - time.monotonic(), 0.0)
            self._channel.settimeout(left_s)
            if left_s == 0.0 or not self._wait():
                self._apply(time.monotonic())
                continue
            self._channel.settimeout(ANSWER_TIMEOUT_S)
            batch = receive(self._channel)
            if not isinstance(batch, Batch):
                return
            self._take(batch)

    def _wait(self) -> bool:
        """Return whether a message (or the owner's end) arrives before the next moment."""
        try:
            self._channel.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return False
        return True

    def _take(self, batch: Batch) -> None:
        self._apply(time.monotonic())  # requests that were due before the batch are sent first
        for link in batch.forget:
            self._coming.pop(link, None)
        for netns in batch.leave:
            if (netlink := self._sockets.pop(netns, None)) is not None:
                netlink.close()
        for link, coming in batch.coming.items():
            self._coming.setdefault(link, deque()).extend(coming)
        applied, self._applied = self._applied, []
        send(self._channel, TimerAnswer(applied, self._refusal))

    def _apply(self, now: float) -> None:
        """Send the requests that are due, all of one namespace at once."""
        due: dict[Path, list[tuple[str, TimedRequests]]] = {}
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
    """Get real-time scheduling if the host grants it, or a higher priority, or neither; lateness is recorded."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(REALTIME_PRIORITY))
    except PermissionError:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, -15)


if __name__ == "__main__":
    _ask_for_realtime()
    with socket.socket(fileno=int(sys.argv[1])) as owner:
        Timekeeper(owner).run()
