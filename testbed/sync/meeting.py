"""How a member comes to a run: it says where it listens, and is told its job and where the others do."""

from __future__ import annotations

import socket
from dataclasses import dataclass, fields

from testbed.protocol import Hello, Job, ProtocolError, Welcome
from testbed.sync.control import Channel
from testbed.sync.sockets import listen as open_listener


@dataclass(frozen=True, slots=True)
class Meeting:
    """All members are there. Peers may connect to `accepting` already; nobody takes them in yet."""

    name: str
    accepting: socket.socket
    channel: Channel
    welcome: Welcome
    job: Job


def meet(control: str, name: str, listen: str, device: str, patience_s: float, token: str) -> Meeting:
    """Come to the run of the controller at `control`, and wait for the others; see `join`."""
    accepting = open_listener(listen, patience_s)
    channel = Channel(control, patience_s)
    channel.send(Hello(name, accepting.getsockname(), device, token))
    welcome = channel.await_welcome(patience_s)
    return Meeting(name, accepting, channel, welcome, _job(welcome))


def _job(welcome: Welcome) -> Job:
    known = {field.name for field in fields(Job)}
    if unknown := sorted(set(welcome.job) - known):
        raise ProtocolError(f"the job has unknown fields {unknown}")
    return Job(**welcome.job)
