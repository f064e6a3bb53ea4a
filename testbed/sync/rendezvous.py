"""How a member comes to a run: it says where it listens, and is told its job and where the others do."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from msgspec.structs import replace

from testbed.protocol import Hello, Job, Prepare, Rejoin, Welcome
from testbed.sync.control_channel import ControlChannel
from testbed.sync.control_connection import ControlConnection
from testbed.sync.transport import TransportSettings
from testbed.sync.transport.sockets import listen as open_listener
from testbed.tls import Tls

#: Whoever starts a controller takes some seconds for it: where none answers for so long, none will, however long the
#: others may be waited for.
REACH_S = 120.0


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """All members are there. Peers may connect to `accepting` already; nobody takes them in yet.

    `hello` is what this one said to the controller at `control`, over `channel`, and `welcome` the answer. `keys` are
    those that this member has in common with each other one, for all settings alike: who comes later is added to them.
    """

    control: str
    accepting: socket.socket
    channel: ControlChannel
    hello: Hello
    welcome: Welcome
    keys: dict[str, bytes] = field(repr=False)
    tls: Tls | None = None

    @property
    def job(self) -> Job:
        """What it is to do."""
        return self.welcome.job

    @property
    def name(self) -> str:
        """The member's."""
        return self.hello.member

    def settings(self, generation: int = 0) -> TransportSettings:
        """How this member connects to the others, as one of a `generation`."""
        job = self.job
        return TransportSettings(
            self.name, self.keys, job.round_timeout_s, job.streams, job.congestion, generation, self.tls
        )

    def connection(self, rejoin: Callable[[], Rejoin] | None = None) -> ControlConnection:
        """The line to the controller. `rejoin` says where this member stands, for when the controller was away; None
        where members have no lease, and do not come back to it."""
        hello = replace(self.hello, returns=True)
        says = (lambda: ()) if rejoin is None else (lambda: (hello, rejoin()))
        connection = ControlConnection(
            self.channel, self.name, says, self.welcome.lease_s, lambda: ControlChannel(self.control, 0, self.tls)
        )
        connection.start()
        return connection


def rendezvous(
    control: str, name: str, listen: str, device: str, timeout_s: float, token: str, tls: Tls | None = None
) -> Rendezvous:
    """Come to the run of the controller at `control`, and wait for the others; see `join`."""
    with ExitStack() as unless_met:
        accepting = unless_met.enter_context(open_listener(listen, timeout_s))
        channel = unless_met.enter_context(closing(ControlChannel(control, min(timeout_s, REACH_S), tls)))
        hello = Hello(name, accepting.getsockname(), device, token)
        channel.send(hello)
        welcome = channel.await_welcome(timeout_s)
        unless_met.pop_all()
    return Rendezvous(control, accepting, channel, hello, welcome, keys_of(welcome), tls)


def keys_of(message: Welcome | Prepare) -> dict[str, bytes]:
    """What a message says that this member and others know of each other."""
    return {peer: bytes.fromhex(key) for peer, key in message.keys.items()}
