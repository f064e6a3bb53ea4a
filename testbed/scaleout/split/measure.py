"""Cut links measured from outside before anybody uses them, by the two hosts of each; see `cut`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from testbed.emulation.links.probe import (
    ETHERNET_BYTES,
    FLOOD_WARM_UP_S,
    LinkFidelity,
    window_s,
)
from testbed.emulation.shaping.base import passes
from testbed.link import LinkState, link_ends, link_name
from testbed.scaleout.split.split import SplitHosts

#: A flood that offered less than this part of what the link carries did not fill it.
OFFERED = 1.0
#: The flood goes on for a while after the second look.
AFTER_S = 0.3


def measure_cut(
    hosts: SplitHosts, host_of: Mapping[str, str], states: Mapping[str, LinkState], links: Iterable[str], mtu: int
) -> dict[str, LinkFidelity]:
    """Of these links, which are cut. One after another: each takes about two seconds."""
    links = [link for link in links if states[link].up]
    errors: dict[str, float] = {}
    asked = {name: states[name] for link in links for name in (link, _back(link)) if name in states}
    for found in hosts.each("cut.round_trip_errors", lambda _: (asked,)).values():
        errors |= found
    measured = {}
    for link in links:
        rate, resolution = _rate(hosts, host_of, link, states[link], mtu)
        measured[link] = LinkFidelity(rate, errors.get(link), resolution)
    return measured


def _rate(
    hosts: SplitHosts, host_of: Mapping[str, str], link: str, state: LinkState, mtu: int
) -> tuple[float | None, float]:
    """The relative error of a link's rate, None where it passes nothing or was not filled, and the resolution."""
    if not passes(state) or state.loss >= 1:
        return None, 0.0
    near, far = (host_of[site] for site in link_ends(link))
    window, warm_up_s = window_s(state), FLOOD_WARM_UP_S + state.delay_s + state.jitter_s
    hosts.call(far, "cut.listen", link)
    flood = hosts.hosts[near].submit("cut.flood", link, state, warm_up_s + window + AFTER_S)
    time.sleep(warm_up_s)
    before = hosts.call(far, "cut.arrived", link)
    time.sleep(window)
    after = hosts.call(far, "cut.arrived", link)
    offered = flood.result()
    hosts.call(far, "cut.ignore", link)
    time.sleep(state.queue_bytes * 8 / state.rate_bps + state.delay_s)  # for what still waits
    seconds = after.at - before.at
    expected = state.rate_bps / 8 * seconds
    unsure_s = state.jitter_s + (before.took_s + after.took_s) / 2
    error = (after.bytes - before.bytes) / expected - 1
    return (error if offered >= OFFERED else None), (mtu + ETHERNET_BYTES) / expected + unsure_s / seconds


def _back(link: str) -> str:
    source, target = link_ends(link)
    return link_name(target, source)
