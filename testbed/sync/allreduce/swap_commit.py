"""What the root of a new plan and the others say to each other so that it takes force between rounds among all.

A connection of their own to where each member listens for its peers, on the channel for those who ask for something:

    prepare  epoch         -->        promise  epoch, newest round begun        <--
    commit   epoch, first round  or  abort  epoch  -->
"""

from __future__ import annotations

import socket
import struct
import threading
from enum import IntEnum
from typing import NamedTuple, Protocol

from testbed.sync.errors import FrameError
from testbed.sync.transport import Greeting, TransportSettings, handshake, sockets
from testbed.sync.transport.frame import FETCH

_MESSAGE = struct.Struct("<BII")

#: A root waits no longer for a promise, which comes within a round trip of a connection that is there: others that have
#: promised wait for it. A link that fell to a tenth has queued a second or two.
PROMISE_S = 5.0


class SwapStep(IntEnum):
    """What is said; the numbers are none of what is fetched (see fetch.py)."""

    PREPARE = 16
    PROMISE = 17
    COMMIT = 18
    ABORT = 19


class SwapMessage(NamedTuple):
    """A step for the plan of `epoch`. `round` is the newest begun, for a promise, and the first by the plan, for a
    commit; else 0."""

    step: SwapStep
    epoch: int
    round: int = 0


class SwapPeer(Protocol):
    """Another member, as the root of a plan sees it. OSError and SyncError when it can't be reached."""

    def send(self, message: SwapMessage) -> None:
        """Tell it."""

    def receive(self) -> SwapMessage:
        """What it says; waits for it."""

    def close(self) -> None:
        """Nothing more is said."""


class SwapConnection:
    """A connection between the root of a plan and another member, either way."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        connection.settimeout(timeout_s)
        self._connection = connection

    def send(self, message: SwapMessage) -> None:
        self._connection.sendall(_MESSAGE.pack(*message))

    def receive(self) -> SwapMessage:
        raw = memoryview(bytearray(_MESSAGE.size))
        sockets.receive(self._connection, raw)
        step, epoch, number = _MESSAGE.unpack(raw)
        if step not in tuple(SwapStep):
            raise FrameError(f"no step of a swap: {step}", rule="unknown-step", given=step)
        return SwapMessage(SwapStep(step), epoch, number)

    def close(self) -> None:
        sockets.close_now(self._connection)


def connect(
    peer: str, address: tuple[str, int], settings: TransportSettings, given_up: threading.Event
) -> SwapConnection:
    """A connection to the member `peer`, which listens at `address`. OSError when there can be none in time."""
    greeting = Greeting(settings.member, FETCH)

    def greet(connection: socket.socket, deadline: float) -> socket.socket:
        return handshake.greet(connection, greeting, peer, settings, deadline, given_up.is_set)

    connection = sockets.connect(address, settings.timeout_s, given_up, settings.congestion, greet)
    return SwapConnection(connection, min(PROMISE_S, settings.timeout_s))
