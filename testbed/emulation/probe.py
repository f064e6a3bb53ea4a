"""Measuring links from outside, while they carry nothing else: round trips by ping, rates by a flood of UDP.

The flood is counted by the kernel where it arrives, so neither the shaper nor the sender vouches for itself.
"""

from __future__ import annotations

import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from testbed.emulation.namespace import inside
from testbed.emulation.network import Network
from testbed.link import MTU_FRAME_BYTES, LinkState, link_ends, link_name

PINGS = 8
PING_INTERVAL_S = 0.1

#: A flood must fill the queue before it is counted, so it runs faster than the link, and for a while beforehand.
FLOOD_EXCESS = 1.25
FLOOD_WARM_UP_S = 0.3
FLOOD_WINDOW_S = 0.8
FLOOD_PORT = 9

#: Links flooded at once carry no more than this together: 200 Mbit/s of full-size frames is 16,500 packets a second,
#: which leaves a small host time to keep to the rates.
FLOOD_TOTAL_BPS = 200e6

FLOOD_BUFFER_BYTES = 1 << 28
#: setsockopt(7) past the system's limit, for root; the socket module has no name for it.
SO_SNDBUFFORCE = 32


@dataclass(frozen=True, slots=True)
class LinkFidelity:
    """One link as asked and as measured: relative rate error, and round-trip error in seconds (with its way back).

    None where there was nothing to measure. `rate_resolution`: what the measurement of the rate could not resolve.
    """

    rate_error: float | None
    rtt_error_s: float | None
    rate_resolution: float = 0.0


def measure_links(
    network: Network, progress: Callable[[str], None], names: Set[str] | None = None
) -> dict[str, LinkFidelity]:
    """Measure the links of these names, or all, that are up. Takes about two seconds per 200 Mbit/s of links."""
    in_force = network.links_in_force.states()
    states = {name: s for name, s in in_force.items() if s.up and (names is None or name in names)}
    progress(f"round trips of {len(states)} links")
    round_trips = _round_trips(network, states)
    rates: dict[str, float] = {}
    for batch in _batches(states):
        progress(f"rates of {len(rates) + 1} to {len(rates) + len(batch)} of {len(states)} links")
        rates |= _flood(network, batch)
    return {name: LinkFidelity(rates[name], round_trips[name]) for name in states}


def _round_trips(network: Network, states: Mapping[str, LinkState]) -> dict[str, float]:
    """Errors of the links' idle round trips: of the least one, or of the mean where jitter is asked for.

    ping prints single times of 100 ms and more in whole milliseconds, its closing line in microseconds.
    """
    running = {
        name: network.router(link_ends(name)[0]).popen(
            ["ping", "-nq", "-c", str(PINGS), "-i", str(PING_INTERVAL_S), "-W", "3", network.link_address(name)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for name in states
    }
    errors = {}
    for name, process in running.items():
        closing = re.search(r"= ([\d.]+)/([\d.]+)/", process.communicate()[0].decode())
        source, target = link_ends(name)
        there, back = states[name], states.get(link_name(target, source), states[name])
        if closing is None:  # no answer at all: not the link that was asked for
            errors[name] = float("inf")
            continue
        measured_ms = float(closing[2 if there.jitter_s or back.jitter_s else 1])
        errors[name] = measured_ms / 1e3 - there.delay_s - back.delay_s
    return errors


def _batches(states: Mapping[str, LinkState]) -> Iterator[dict[str, LinkState]]:
    batch: dict[str, LinkState] = {}
    for name, state in states.items():
        if batch and sum(s.rate_bps for s in batch.values()) + state.rate_bps > FLOOD_TOTAL_BPS:
            yield batch
            batch = {}
        batch[name] = state
    if batch:
        yield batch


def _flood(network: Network, states: Mapping[str, LinkState]) -> dict[str, float]:
    """Relative rate errors of links flooded side by side, over FLOOD_WINDOW_S seconds."""
    sinks, floods = [], []
    try:
        for name in states:
            source, target = link_ends(name)
            sink = inside(network.router(target).netns, _udp_socket)
            sink.bind((network.link_address(name), FLOOD_PORT))
            sinks.append(sink)
            flood = inside(network.router(source).netns, _udp_socket)
            flood.setblocking(False)
            # What is on its way over the link still counts as in the sender's buffer: it must hold rate × delay.
            flood.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, FLOOD_BUFFER_BYTES)
            flood.connect((network.link_address(name), FLOOD_PORT))
            floods.append(flood)
        warm = FLOOD_WARM_UP_S + max(state.delay_s for state in states.values())
        stop = time.monotonic() + warm + FLOOD_WINDOW_S
        sender = threading.Thread(target=_send, args=(list(zip(floods, states.values(), strict=True)), stop))
        sender.start()
        time.sleep(warm)
        before = {name: _arrived(network, name) for name in states}
        time.sleep(max(0.0, stop - time.monotonic() - 0.05))
        after = {name: _arrived(network, name) for name in states}
        sender.join()
    finally:
        for opened in (*sinks, *floods):
            opened.close()
    errors = {}
    for name, state in states.items():
        (t0, bytes0), (t1, bytes1) = before[name], after[name]
        expected = state.rate_bps / 8 * (t1 - t0) * (1 - state.loss)
        errors[name] = (bytes1 - bytes0) / expected - 1
    return errors


def _send(floods: Iterable[tuple[socket.socket, LinkState]], stop: float) -> None:
    """Keep every link a little more than full, in steps of a millisecond."""
    payload = bytes(MTU_FRAME_BYTES - 14 - 28)
    sent = [0] * len(list(floods))
    began = time.monotonic()
    while (now := time.monotonic()) < stop:
        for i, (flood, state) in enumerate(floods):
            due = int((now - began) * state.rate_bps / 8 * FLOOD_EXCESS / MTU_FRAME_BYTES) + 1
            try:
                while sent[i] < due:
                    flood.send(payload)
                    sent[i] += 1
            except BlockingIOError:
                continue  # the interface is full, which is what a flood is for
        time.sleep(0.001)


def _arrived(network: Network, link: str) -> tuple[float, int]:
    """(when, bytes received so far) on the interface where a link ends."""
    source, target = link_ends(link)
    return time.monotonic(), network.router(target).received_bytes()[source]


def _udp_socket() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
