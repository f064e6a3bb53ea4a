"""The trains that members would have seen come in, of chunks sent to them (see sync/transport/arrivals)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from testbed.link import TCP_PAYLOAD_BYTES
from testbed.protocol import Train
from testbed.simulation.round_model import Transfer
from testbed.sync.transport.arrivals import LEAST_BYTES, MOST_BYTES, MOST_S

#: Chunks between which a sender paused for no longer follow one another.
PAUSE_S = 1e-6


def trains(sent: Sequence[Transfer], zero_s: float) -> Iterator[tuple[float, Train]]:
    """When each train was over (seconds after training began), and the train, whose time is Unix time; training began
    at `zero_s`."""
    run: list[Transfer] = []
    for chunk in sent:
        if run and (chunk.began_s - run[-1].ended_s > PAUSE_S or _is_long(run)):
            yield from _train(run, zero_s)
            run = []
        run.append(chunk)
    if run:
        yield from _train(run, zero_s)


def _is_long(run: Sequence[Transfer]) -> bool:
    size = sum(chunk.bytes for chunk in run)
    return size >= MOST_BYTES or (size >= LEAST_BYTES and run[-1].came_s - run[0].first_s >= MOST_S)


def _train(run: Sequence[Transfer], zero_s: float) -> Iterator[tuple[float, Train]]:
    """The first packet only says when the train began."""
    whole = sum(chunk.bytes for chunk in run)
    seconds, size = run[-1].came_s - run[0].first_s, int(whole) - TCP_PAYLOAD_BYTES
    if size < LEAST_BYTES or seconds <= 0:
        return
    first_s = seconds * TCP_PAYLOAD_BYTES / whole
    began_s, lasted_s = zero_s + run[0].first_s + first_s, seconds - first_s
    if lasted_s >= 1e-6:
        paces = [int(chunk.pace) for chunk in run]
        yield run[-1].came_s, Train(round(began_s, 5), round(lasted_s, 6), size, min(paces), max(paces))
