"""The rendezvous of a member: it sends its address to the controller, and receives its job and the peers' addresses."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from testbed.protocol import ControlMessage, Goodbye, Hello, Job, NodeConfiguration, Prepare, Welcome
from testbed.sockets import Tls
from testbed.sync.control_channel import ControlChannel
from testbed.sync.control_connection import ControlConnection
from testbed.sync.errors import SyncError
from testbed.sync.transport import TransportSettings
from testbed.sync.transport.sockets import listen as open_listener

#: The longest wait in seconds for this machine's address, and for the controller to accept the connection. Both come
#: within seconds; the wait for the other members may be much longer.
REACH_S = 120.0


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The result of joining a run, once all members are there: the connection, and the controller's welcome."""

    #: The controller's address.
    control: str
    #: The listening socket. Peers may connect already; nothing accepts them yet.
    accepting: socket.socket
    channel: ControlChannel
    #: This member's first message to the controller.
    hello: Hello
    #: The controller's answer.
    welcome: Welcome
    #: The keys that this member shares with each other member, by name. Members that join later are added.
    keys: dict[str, bytes] = field(repr=False)
    #: This member's certificate, if connections are encrypted.
    tls: Tls | None = None

    @property
    def job(self) -> Job:
        """The run's settings."""
        return self.welcome.job

    @property
    def name(self) -> str:
        """The member's name."""
        return self.hello.member

    @property
    def node(self) -> NodeConfiguration:
        """This member's node configuration, for gossip. Raises ProtocolError if the job has another assignment."""
        return NodeConfiguration.from_json(self.job.assignment)

    def settings(self, generation: int = 0) -> TransportSettings:
        """Return the settings of this member's connections to peers of a `generation` (see Greeting)."""
        job = self.job
        return TransportSettings(
            self.name, self.keys, job.round_timeout_s, job.streams, job.congestion, generation, self.tls
        )

    def connection(self, rejoin: Callable[[], Iterable[ControlMessage]] | None = None) -> ControlConnection:
        """Return the connection to the controller.

        Args:
            rejoin: Returns the messages with this member's state for a controller that is back after an outage; None
                for a member without a lease, which does not reconnect.
        """
        hello = replace(self.hello, returns=True)

        def messages() -> Iterable[ControlMessage]:
            return () if rejoin is None else (hello, *rejoin())

        return ControlConnection(
            self.channel, self.name, messages, self.welcome.lease_s, lambda: ControlChannel(self.control, 0, self.tls)
        )


def rendezvous(
    control: str,
    name: str,
    listen: str,
    device: str,
    timeout_s: float,
    token: str,
    tls: Tls | None = None,
    on_wait: Callable[[ControlChannel], None] = lambda channel: None,
) -> Rendezvous:
    """Join the run of the controller at `control`, and wait for the other members; see `sync.join` for the arguments.

    Before the wait `on_wait` is called with the channel to the controller; another thread may close it to end the wait.

    Raises:
        SyncError: The address, the controller or a member did not appear in time, or the controller refused.
        Stopped: The controller tells this member to stop.
    """
    with ExitStack() as on_failure:
        accepting = on_failure.enter_context(open_listener(listen, min(timeout_s, REACH_S)))
        channel = on_failure.enter_context(closing(ControlChannel(control, min(timeout_s, REACH_S), tls)))
        on_wait(channel)
        hello = Hello(name, accepting.getsockname(), device, token)
        welcome = channel.greet(hello, timeout_s)
        on_failure.pop_all()
    return Rendezvous(control, accepting, channel, hello, welcome, keys_of(welcome), tls)


def keys_of(message: Welcome | Prepare) -> dict[str, bytes]:
    """Return the keys in a message, which this member shares with each other member, by name."""
    return {peer: bytes.fromhex(key) for peer, key in message.keys.items()}


@contextmanager
def telling_failure(met: Rendezvous, after_round: int = 0) -> Iterator[None]:
    """Send the controller the error that ends the context: the member can't begin. The error is raised again.

    Args:
        met: The result of the rendezvous.
        after_round: The last round that the members have completed.
    """
    try:
        yield
    except Exception as error:
        text = str(error) if isinstance(error, ValueError | SyncError) else f"{type(error).__name__}: {error}"
        with suppress(OSError):  # the connection may have ended, and the member's own error counts
            met.channel.send(Goodbye.with_error(met.name, after_round, text))
        raise
