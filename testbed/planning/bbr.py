"""Connections under BBR, as `bbr.h` has them: what each believes of its path goes on from simulation to simulation."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.link import TCP_PAYLOAD_BYTES

#: One is a row; the names and their order are those of `struct bbr`.
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

Connections = NDArray[Any]

#: A connection begins with ten packets a round trip.
INITIAL_BYTES = 10 * TCP_PAYLOAD_BYTES
#: Round trips without growth after which it has found what there is.
STARTUP_TRIPS = 3


def opened(trip_s: float) -> Connections:
    """A row of one that has sent nothing yet."""
    row = np.zeros(1, CONNECTION)
    row["trip_s"], row["estimate"] = trip_s, INITIAL_BYTES / trip_s
    row["startup"], row["ends_s"] = STARTUP_TRIPS, inf
    return row
