"""Connections between members: frames, queues and meters, independent of any algorithm."""

from __future__ import annotations

from testbed.sync.transport.frame import DIRECT, Frame, Greeting
from testbed.sync.transport.handshake import CLOSE_S, TransportSettings
from testbed.sync.transport.listener import Listener, Received
from testbed.sync.transport.outbox import Outbox, RouteTable

__all__ = [
    "CLOSE_S",
    "DIRECT",
    "Frame",
    "Greeting",
    "Listener",
    "Outbox",
    "Received",
    "RouteTable",
    "TransportSettings",
]
