"""Measure the README's table of the testbed and its peers in one run: links, replay, re-planning, a training script.

    sudo python -m benchmarks.compared [--python PEERS/bin/python]

A row is a property, a column a tool. The figures are those of other benchmarks:

    links      the worst error of `fidelity`'s cells without loss; a busy link whose rate changes twenty times
    replay     26 links with a row each 100 ms, and a packet-delivery trace, of `replay`
    training   examples/gpt.py over the quickstart's network, until the loss of `systems`
    a run      the quickstart of `quickstart`: its verdict, and the time until another plan after a link's drop

Mininet's TCLink needs netem. Where this kernel lacks netem, Mininet's links and a second look at the testbed's are
measured in the guest kernel. hivemind and torchft need the script changed, and an interpreter that has them, which
`--python` names. A tool that can't be run here has no column. Run it alone on the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import quickstart, replay, systems
from benchmarks.support.campaign import without_curves
from benchmarks.support.fidelity.subjects import MininetLink, TestbedLink
from benchmarks.support.options import Options
from benchmarks.support.program import run_program
from benchmarks.support.systems.cells import missing
from benchmarks.support.table import Table, progress, show

OURS, MININET, HIVEMIND, TORCHFT = TOOLS = "testbed", "Mininet", "hivemind", "torchft"
#: The cell of what a tool is not made for.
OTHER_TASK = "–"

#: Traces of a network of the size of `netstorm9`: links, and seconds between two rows.
CLOCK = (26, 0.1)
#: Seconds of the clock, and of the packet-delivery trace.
REPLAYED_S, QUICK_REPLAYED_S = (20.0, 60), (5.0, 15)

#: The systems of `benchmarks.systems` that train: the unchanged script without and with a scheme, and the peers.
PLAIN, SCHEME = "gloo", "diloco"
TRAINED = (PLAIN, SCHEME, HIVEMIND, TORCHFT)
NETWORK, SEED = "quickstart", 1


@dataclass(frozen=True, slots=True)
class Links:
    """A tool's links: the worst errors of the cells that the host could carry, and a busy link that is toggled."""

    rate_error: float
    round_trip_error_s: float
    #: The most bytes in 100 ms, relative to what the rate in force allows.
    excess: float
    retransmissions: int

    @classmethod
    def of(cls, found: Mapping[str, Any], subject: str) -> Links:
        """Return a subject's figures among those that `benchmarks.fidelity --json` printed."""
        cells = [cell for cell in found["cells"] if cell["subject"] == subject and not cell["cell"]["loss_pct"]]
        toggled = next(one for one in found["toggle"] if one["subject"] == subject)
        return cls(
            max(abs(cell["rate"]["error"]) for cell in cells if cell["carried"]),
            max(abs(cell["rtt"]["error"]) for cell in cells),
            toggled["excess"],
            toggled["retransmissions"],
        )

    def texts(self) -> tuple[str, str, str]:
        """Return the table's cells."""
        return (
            f"{self.rate_error:.2%}",
            f"{self.round_trip_error_s * 1e3:.2f} ms",
            f"{self.excess:.2f} of what is allowed, {self.retransmissions} retransmissions",
        )


@dataclass(frozen=True, slots=True)
class Found:
    """All figures of a run of this benchmark."""

    #: By the name of the subject.
    links: Mapping[str, Links]
    #: The testbed's links in the guest kernel, where Mininet was measured there.
    guest: Links | None
    #: The replayed rows' lateness at the 99th percentile, and the mean error of a delivery trace's seconds.
    late_ms: float
    delivery_error: float
    #: By system: what `benchmarks.systems` measures; and the systems that can't be measured, with the reasons.
    trained: Mapping[str, Mapping[str, Any]]
    missing: Mapping[str, str]
    #: The most seconds that a system trains.
    limit_s: float
    #: What `benchmarks.quickstart` measures.
    run: Mapping[str, Any]


def main() -> int:
    """Measure everything and print the table. Returns the exit code."""
    parser = Options(__doc__)
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has hivemind and torchft")
    args = parser.parse()
    backend, links, guest = _links(args.quick)
    late_ms, delivery_error = _replayed(*(QUICK_REPLAYED_S if args.quick else REPLAYED_S))
    limit_s = systems.QUICK_LIMIT_S if args.quick else systems.LIMIT_S
    trained, lacking = _trained(args.python, limit_s)
    progress("the quickstart")
    run = quickstart.measured(quickstart.Cell("quiet"), None)
    found = Found(links, guest, late_ms, delivery_error, without_curves(trained), lacking, limit_s, run)
    shown = table(found)
    figures = {"repeats": 1, **asdict(found), "columns": shown.columns, "rows": shown.rows}
    show([shown], figures, as_json=args.json, backend=backend)
    return 0


def _links(quick: bool) -> tuple[str, dict[str, Links], Links | None]:
    """Measure links. Returns the backend here, the links by subject, and the testbed's in the guest or None."""
    words = ["--quick"] if quick else []
    here = _fidelity([*words, "grid", "toggle"])
    links = {TestbedLink.name: Links.of(here, TestbedLink.name)}
    beside = here if here["backend"] == "netem" else _fidelity([*words, "--guest", "grid", "toggle"])
    links[MininetLink.name] = Links.of(beside, MininetLink.name)
    return here["backend"], links, None if beside is here else Links.of(beside, TestbedLink.name)


def _fidelity(words: Sequence[str]) -> dict[str, Any]:
    """Run `benchmarks.fidelity` and return what it printed as JSON.

    It is a process of its own: Mininet changes its interpreter's signal handlers and log.
    """
    progress(f"benchmarks.fidelity {' '.join(words)}")
    command = [sys.executable, "-m", "benchmarks.fidelity", "--json", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not found:  # with a missed claim it ends with 1, and has figures
        raise RuntimeError(f"`{' '.join(command)}` ended with exit code {done.returncode} and without figures")
    return dict(json.loads(found[-1]))


def _replayed(clock_s: float, delivery_s: int) -> tuple[float, float]:
    """Return the lateness of rows at the 99th percentile in ms, and the mean error of a delivery trace's seconds."""
    progress(f"{CLOCK[0]} links, a row each {CLOCK[1]:g} s")
    late = replay.lateness(*CLOCK, clock_s, busy=False)
    progress(f"a packet-delivery trace, {delivery_s} s")
    return late.p99_ms, replay.measure(seconds=delivery_s).mean_error


def _trained(python: str, limit_s: float) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Train by each system that the interpreter has. Returns the figures, and why the others are left out."""
    lacking = missing(TRAINED, python)
    found = {}
    for name in (name for name in TRAINED if name not in lacking):
        progress(f"examples/gpt.py by {name}")
        found[name] = systems.measure(systems.Cell(NETWORK, name, SEED, limit_s), None, python=python)
    return found, lacking


def table(found: Found) -> Table:
    """Return the table of the README."""
    ours, mininet = (found.links[subject.name].texts() for subject in (TestbedLink, MininetLink))
    rows: dict[str, Mapping[str, str]] = {
        "rate of a link, worst error": {OURS: ours[0], MININET: mininet[0]},
        "round trip, worst error": {OURS: ours[1], MININET: mininet[1]},
        "a busy link changed 20 times: most in 100 ms": {OURS: ours[2], MININET: mininet[2]},
        "replay of traces": {
            OURS: f"rows {found.late_ms:.1f} ms late (p99), packet deliveries {found.delivery_error:.1%} off",
        },
        f"a DDP script on {NETWORK}, s to the loss {systems.LOSS:g}": {
            OURS: f"unchanged, by `--scheme {SCHEME}`: {_seconds(found, SCHEME)}; "
            f"by DDP over gloo: {_seconds(found, PLAIN)}",
            **{peer: f"changed: {_seconds(found, peer)}" for peer in (HIVEMIND, TORCHFT)},
        },
        "another plan after a link's drop": {OURS: _replanned(found.run)},
        "a verdict on the run": {OURS: found.run["verdict"]},
    }
    guest = found.guest and f"the testbed in the guest kernel, beside Mininet: {'; '.join(found.guest.texts())}"
    notes = [
        f"{OTHER_TASK}: not measured, since the tool is made for another task",
        *([guest] if guest else []),
        *(f"{name} is left out: {reason}" for name, reason in found.missing.items()),
        *(f"the quickstart is suspect: {reason}" for reason in found.run["reasons"]),
    ]
    cells = [[name, *(row.get(tool, OTHER_TASK) for tool in TOOLS)] for name, row in rows.items()]
    return Table("The testbed beside its peers, measured in one run", ["", *TOOLS], cells, notes)


def _seconds(found: Found, system: str) -> str:
    """Return the seconds to the loss by a system, or why there are none."""
    if system in found.missing:
        return "not installed"
    figures = found.trained[system]
    if "failed" in figures:
        return f"failed ({figures['failed']})"
    return f"{figures['seconds']:.0f} s" if figures["seconds"] is not None else f"> {found.limit_s:g} s"


def _replanned(run: Mapping[str, Any]) -> str:
    """Return when the controller asked for a plan that relieves the link, and when that plan was in force."""
    if run["asked_s"] is None:
        return "none"
    in_force_s = run["in_force_s"]
    then = "never in force" if in_force_s is None else f"in force after {in_force_s:.1f} s"
    return f"asked for after {run['asked_s']:.1f} s, {then}"


if __name__ == "__main__":
    run_program(main)
