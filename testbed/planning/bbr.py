"""Connections under BBR (`bbr.h`) as rows of an array. Their estimates live on from simulation to simulation."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.link import TCP_PAYLOAD_BYTES

#: The fields of a connection, in the names and the order of `struct bbr`; `bbr.h` explains each.
CONNECTION = np.dtype(
    [
        ("trip_s", "f8"),
        ("estimate", "f8"),
        ("samples", "f8", 10),
        *((name, "f8") for name in ("trips", "startup", "phase", "held", "held_trips")),
        *((name, "f8") for name in ("lossy_trips", "lossy_bytes", "lossy_s", "lossy_rate")),
        *((name, "f8") for name in ("stopped_s", "began_s", "ends_s", "bytes", "last", "paused", "first", "stretched")),
    ]
)

#: An array of CONNECTION, one row for each flow; a row whose `trip_s` is 0 is not a connection.
Connections = NDArray[Any]

#: Bytes of a new connection's first round trip: ten packets.
INITIAL_BYTES = 10 * TCP_PAYLOAD_BYTES
#: Round trips without growth after which a connection leaves STARTUP.
STARTUP_TRIPS = 3


def opened(trip_s: float) -> Connections:
    """Return one row: a new connection that has sent nothing, with a round trip of `trip_s` seconds."""
    row = np.zeros(1, CONNECTION)
    row["trip_s"], row["estimate"] = trip_s, INITIAL_BYTES / trip_s
    row["startup"], row["ends_s"] = STARTUP_TRIPS, inf
    return row
