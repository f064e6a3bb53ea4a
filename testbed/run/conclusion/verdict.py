"""The verdict: did the emulation do what the files asked, so that the run's figures can be trusted? Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isinf
from typing import Literal

from testbed.spec.units import count

# Tolerances, each with the reason for its size. A run that exceeds one is `suspect`, with the figure.

#: Relative error of a link's rate, and error in seconds of its idle round trip, by shaping backend.
RATE_TOLERANCE = {"netem": 0.01, "userspace": 0.02}
RTT_TOLERANCE_S = {"netem": 0.5e-3, "userspace": 1e-3}

#: A twentieth of the shortest trace step in use (100 ms).
REPLAY_LATE_P99_S = 5e-3

#: A host that is busy for more than this share of a second can't be on time …
CPU_BUSY = 0.97
#: … and the fraction of a run's seconds that may be so busy: start-up and evaluation cause some.
CPU_BUSY_SHARE = 0.10

#: The fraction of all steps that may take longer than declared (by STEP_OVERRUN): first steps warm caches up.
STEP_OVERRUN_SHARE = 0.05

#: The backend of a simulated run: nothing was emulated, so there is nothing to trust or to suspect.
SIMULATED = "simulated"

#: The reason of a simulated run's verdict.
SIMULATION = "rounds were simulated, over links without TCP and on hosts that take no time; see docs/simulate.md"

#: The words by which a reason is recognised as the host's.
STARVED, SLOW = "the host was starved of processor time", "of the steps took longer than declared"


@dataclass(frozen=True, slots=True)
class LinkEvidence:
    """The measured fidelity of one link. A figure is None if there was nothing to measure."""

    #: Relative.
    rate_error: float | None
    #: Infinite if no ping was answered.
    rtt_error_s: float | None
    replay_late_p99_s: float | None
    #: Whether the link has a trace of which no row came into force, not even the one at which a replay begins.
    unreplayed: bool = False
    #: The relative error that the measurement of the rate can't resolve: packets are whole, and random loss is random.
    rate_resolution: float = 0.0
    #: Bytes that bypassed the shaper.
    unshaped_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence on which a finished run is judged. A dead shaper or a stopped replay ends the run before."""

    backend: str
    links: Mapping[str, LinkEvidence]
    #: The host's busy share in each second.
    cpu: Sequence[float]
    #: The fraction of the steps that took longer than declared.
    late_steps: float
    lost_updates: int
    duplicated_updates: int
    #: Whether all members had the same parameters at the end; None if that is not known.
    identical_parameters: bool | None
    #: The file's events that did not happen, in words.
    missed_events: Sequence[str]
    #: Whether the scheme makes all members' parameters identical.
    alike: bool = True
    #: The changes that people made, which the files did not ask for.
    by_hand: Sequence[str] = ()
    #: Reasons for doubt that concern the other hosts of a network that is split over several.
    hosts: Sequence[str] = ()
    #: Reasons why parts of the emulation were not used.
    idle: Sequence[str] = ()
    #: The file's number of rounds, if the command line asked for fewer: later events are then not missed.
    shortened_from: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on the emulation: did it do what the files asked? `simulated` where nothing was emulated."""

    verdict: Literal["trusted", "suspect", "simulated"]
    #: Why the figures are in doubt, one sentence each.
    reasons: tuple[str, ...]
    #: Remarks that cast no doubt on the figures.
    notes: tuple[str, ...] = ()


def judge(evidence: Evidence) -> Verdict:
    """Return the verdict: `trusted`, or `suspect` with every reason; a simulated run is always `simulated`."""
    if evidence.backend == SIMULATED:
        return Verdict("simulated", (SIMULATION, *_missed(evidence)), _notes(evidence))
    reasons = [*evidence.idle]
    reasons += [reason for name, link in evidence.links.items() for reason in _link(name, link, evidence.backend)]
    reasons += _replay(evidence.links)
    reasons += [*_host(evidence), *evidence.hosts]
    if evidence.lost_updates or evidence.duplicated_updates:
        reasons.append(f"{count(evidence.lost_updates, 'update')} lost, {evidence.duplicated_updates} counted twice")
    if evidence.alike and evidence.identical_parameters is not True:
        reasons.append("the workers' parameters differ after the last round")
    reasons += _missed(evidence)
    if evidence.by_hand:
        reasons.append(f"changed by hand and not by the files: {', '.join(evidence.by_hand)}")
    return Verdict("suspect" if reasons else "trusted", tuple(reasons), _notes(evidence))


def _notes(evidence: Evidence) -> tuple[str, ...]:
    if evidence.shortened_from is None or not evidence.missed_events:
        return ()
    events = ", ".join(evidence.missed_events)
    return (f"the run was shortened from {evidence.shortened_from} rounds, so these events did not happen: {events}",)


def _missed(evidence: Evidence) -> list[str]:
    if evidence.shortened_from is not None:
        return []
    return [f"the event {event} did not happen: training ended before it" for event in evidence.missed_events]


def unused_links(links: Collection[str], sites: Collection[str], wan_bytes: int) -> str:
    """Return why no byte went over a link, and what to do; an empty text if one did.

    `sites` are those of the workers that trained, `wan_bytes` are the bytes that arrived over all links.
    """
    if wan_bytes or not links:
        return ""
    nothing = f"no link was used, so nothing was emulated: 0 bytes went over {count(len(links), 'link')}"
    if len(sites) < 2:
        return f"{nothing}: all processes ran in {', '.join(sites)}; write instead: workers of several sites"
    return (
        f"{nothing}. A program that connects to localhost, or starts its own processes (mp.spawn, torchrun "
        "--standalone), stays on its worker; write instead: MASTER_ADDR, RANK and WORLD_SIZE of the environment"
    )


def host_was_short(reasons: Sequence[str]) -> bool:
    """Return whether a verdict's reasons say that the host had too little processor time for the run."""
    return any(words in reason for reason in reasons for words in (STARVED, SLOW))


def _link(name: str, link: LinkEvidence, backend: str) -> list[str]:
    reasons = []
    rate, rtt = RATE_TOLERANCE[backend] + link.rate_resolution, RTT_TOLERANCE_S[backend]
    if link.rate_error is not None and not abs(link.rate_error) <= rate:
        reasons.append(f"{name}: rate {link.rate_error:+.1%} off the requested rate (tolerance {rate:.1%})")
    if link.unshaped_bytes:
        reasons.append(
            f"{name}: {link.unshaped_bytes / 1e6:.1f} MB bypassed the shaper: its qdisc or filter was removed during "
            "the run"
        )
    if link.rtt_error_s is not None and isinf(link.rtt_error_s):
        reasons.append(
            f"{name}: no ping was answered, although the link and its way back are up; `testbed doctor` says what this "
            "machine can do"
        )
    elif link.rtt_error_s is not None and not abs(link.rtt_error_s) <= rtt:
        reasons.append(
            f"{name}: round trip {link.rtt_error_s * 1e3:+.2f} ms off the requested one (tolerance {rtt * 1e3:g} ms)"
        )
    if link.unreplayed:
        reasons.append(f"{name}: its trace was not replayed")
    return reasons


def _replay(links: Mapping[str, LinkEvidence]) -> list[str]:
    """Return one reason for all late traces, which one process replays, with the figure of the latest link."""
    late = {name: link.replay_late_p99_s for name, link in links.items() if link.replay_late_p99_s is not None}
    beyond = {name: seconds for name, seconds in late.items() if not seconds <= REPLAY_LATE_P99_S}
    if not beyond:
        return []
    worst = max(beyond, key=beyond.__getitem__)
    others = f", as were the traces of {count(len(beyond) - 1, 'other link')}" if len(beyond) > 1 else ""
    return [
        f"{worst}: trace replayed {beyond[worst] * 1e3:.1f} ms late at the 99th percentile{others} "
        f"(tolerance {REPLAY_LATE_P99_S * 1e3:g} ms)"
    ]


def _host(evidence: Evidence) -> list[str]:
    reasons = []
    starved = sum(busy > CPU_BUSY for busy in evidence.cpu) / len(evidence.cpu) if evidence.cpu else 0.0
    if starved > CPU_BUSY_SHARE:
        reasons.append(
            f"{STARVED} in {starved:.0%} of the seconds (tolerance {CPU_BUSY_SHARE:.0%}); "
            "use a smaller scale, fewer workers or longer step times"
        )
    if (late := evidence.late_steps) > STEP_OVERRUN_SHARE:
        reasons.append(f"{late:.0%} {SLOW} (tolerance {STEP_OVERRUN_SHARE:.0%}); declare a longer step time")
    return reasons
