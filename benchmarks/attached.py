"""Measure whether looking at a run disturbs it: the quickstart alone, with a client at its API, with its page open.

    sudo python -m benchmarks.attached [--experiment FILE]

A row is a way to look at the run:

    alone    nothing is attached
    client   a program follows the stream at the run's socket, and asks for the status once a second
    page     a browser that is held to a quarter of a core shows the page all the time

For each row the table has the number of `trusted` runs, and the part of a core that the run's process and its
controller used. The run alone is measured twice; what the other rows use beyond it is the API's cost. For the page the
benchmark also measures how long after an event, and after the end of a plan's first round, each was shown. A run of the
quickstart takes over two minutes, the whole half an hour. The exit code is 1 where a claim is missed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from websockets.exceptions import WebSocketException
from websockets.sync.client import unix_connect

from benchmarks.shaping import cpu_seconds
from benchmarks.support.options import Options
from benchmarks.support.program import require_chromium, run_program
from benchmarks.support.table import Table, progress, show
from testbed.emulation import label
from testbed.emulation.daemon import RUN_SOCKET, client
from testbed.telemetry.store import read_records
from tests.page.browser import Browser, Tab

ROOT = Path(__file__).parents[1]
EXPERIMENT = "experiments/quickstart.yaml"

REPEATS, QUICK_REPEATS, ALONE = 5, 1, 2
CORE_PART, SHOWN_WITHIN_S = 0.1, 1.0

#: The part of a core that the browser may use.
QUARTER, PERIOD_US = 0.25, 100_000
LOOK_S = 1.0

#: A script for the page. It records when it was started, when the page first drew each plan's trees, and when its log
#: first had each event.
WATCH = """{
  window.shown = { begun: Date.now() / 1000 };
  setInterval(() => {
    const note = key => { window.shown[key] ??= Date.now() / 1000; };
    for (const tree of document.querySelectorAll(".tree[data-epoch]")) note(`plan ${tree.dataset.epoch}`);
    for (const one of document.querySelectorAll("#log li > span:nth-child(2)")) note(one.textContent);
  }, 50);
}"""


@dataclass
class Measured:
    """One run and what looking at it cost."""

    verdict: str
    reasons: list[str]
    #: The part of a core that the run's process and its controller used once training had begun.
    core: float
    #: Seconds until the page showed each event and plan.
    shown_s: list[float] = field(default_factory=list)


def main() -> int:
    """Measure the runs and print them. Returns 1 where a claim is missed, else 0."""
    parser = Options(__doc__)
    parser.add_repeats(REPEATS, QUICK_REPEATS)
    parser.add_argument("--experiment", default=EXPERIMENT, help="the experiment's file (default %(default)s)")
    args = parser.parse()
    require_chromium()
    found: dict[str, list[Measured]] = {name: [] for name in ATTACHED}
    for number in range(args.repeats):
        for name, attach in ATTACHED.items():
            if name == "alone" and number >= ALONE:
                continue
            progress(f"{name}, {number + 1} of {args.repeats}")
            found[name].append(_run(args.experiment, attach))
    alone = median(one.core for one in found["alone"])
    shown = sorted(each for one in found["page"] for each in one.shown_s)
    rows = [
        (
            name,
            f"{sum(one.verdict == 'trusted' for one in runs)} of {len(runs)}",
            f"{100 * median(one.core for one in runs):.1f} %",
            f"{100 * (median(one.core for one in runs) - alone):+.1f} %",
        )
        for name, runs in found.items()
    ]
    notes = [f"{name}: {reason}" for name, runs in found.items() for one in runs for reason in one.reasons]
    if shown:
        notes.append(
            f"{len(shown)} swaps and events were shown {median(shown):.2f} s after they were known in the median, "
            f"{shown[-1]:.2f} s at most (claimed ≤ {SHOWN_WITHIN_S:.0f} s)"
        )
    figures: dict[str, Any] = {
        "trusted": {name: sum(one.verdict == "trusted" for one in runs) for name, runs in found.items()},
        "core": {name: [one.core for one in runs] for name, runs in found.items()},
        "shown_s": shown,
        "repeats": args.repeats,
    }
    heads = ("attached", "trusted", "of a core", f"more than alone (claimed ≤ {CORE_PART:.0%})")
    show([Table("What looking at a run costs", heads, rows, notes)], figures, as_json=args.json)
    cheap = all(median(one.core for one in runs) - alone <= CORE_PART for runs in found.values())
    return 0 if cheap and max(shown, default=0.0) <= SHOWN_WITHIN_S else 1


def _run(experiment: str, attach: Callable[[str, threading.Event], Mapping[str, float]]) -> Measured:
    """Run the experiment once, and look at it while it trains."""
    with tempfile.TemporaryDirectory(prefix="testbed-attached-") as folder:
        command = [sys.executable, "-m", "testbed", "run", str(ROOT / experiment), "--port", "0"]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
            lines: list[str] = []
            reading = threading.Thread(target=_read, args=(process, lines))
            reading.start()
            name = _name(Path(folder), process)
            if name is None:
                reading.join()
                raise RuntimeError("the run ended before it trained:\n" + "".join(lines[-10:]))
            ended = threading.Event()
            looks: list[tuple[float, float]] = []
            looking = threading.Thread(target=_look, args=(process, ended, looks))
            looking.start()
            shown = attach(name, ended)
            looking.join()
            reading.join()
        directory = Path(folder) / "runs" / "latest"
        summary = json.loads((directory / "summary.json").read_text())
        late = list(_late(shown, directory))
        (begin_s, first_s), (end_s, last_s) = looks[0], looks[-1]
        return Measured(summary["verdict"], summary["reasons"], (last_s - first_s) / (end_s - begin_s), late)


def _read(process: subprocess.Popen[str], lines: list[str]) -> None:
    """Collect all lines that the process prints."""
    assert process.stdout is not None
    lines.extend(process.stdout)


def _name(folder: Path, process: subprocess.Popen[str]) -> str | None:
    """Return the run's name once it trains, or None if it ends before."""
    while process.poll() is None:
        with suppress(OSError):
            name = (folder / "runs" / "latest").resolve(strict=True).name
            if (label.state_folder(name) / "page.html").exists():
                return name
        time.sleep(0.1)
    return None


def _look(process: subprocess.Popen[str], ended: threading.Event, looks: list[tuple[float, float]]) -> None:
    """Record the time and the processor seconds of the run's processes every LOOK_S until the run ends."""
    while process.poll() is None:
        with suppress(OSError, IndexError):
            used_s = sum(map(cpu_seconds, (process.pid, *_controllers(process.pid))))
            looks.append((time.monotonic(), used_s))
        time.sleep(LOOK_S)
    ended.set()


def _controllers(owner: int) -> list[int]:
    """Return the pids of the controller that a run's process has started."""
    tasks = Path(f"/proc/{owner}/task").glob("*/children")
    children = [pid for task in tasks for pid in task.read_text().split()]
    return [int(pid) for pid in children if b"testbed.controller" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def _alone(name: str, ended: threading.Event) -> Mapping[str, float]:
    ended.wait()
    return {}


def _client(name: str, ended: threading.Event) -> Mapping[str, float]:
    api = client(name)
    with (
        suppress(OSError, WebSocketException),
        unix_connect(str(label.state_folder(name) / RUN_SOCKET), "ws://localhost/api/v1/stream") as stream,
    ):
        asked = 0.0
        while not ended.is_set():
            with suppress(TimeoutError):
                stream.recv(LOOK_S)
            if time.monotonic() - asked >= LOOK_S:
                asked = time.monotonic()
                with suppress(RuntimeError, ValueError):
                    api.status()
    ended.wait()
    return {}


def _page(name: str, ended: threading.Event) -> Mapping[str, float]:
    shown: Mapping[str, float] = {}
    with quarter_of_a_core() as tasks, Browser(tasks) as browser:
        tab: Tab = browser.tab()
        tab.resize(1280, 900)
        tab.open(f"file://{label.state_folder(name) / 'page.html'}")
        while not ended.is_set() and not _says(tab, "Boolean(document.querySelector('#map .link'))"):
            time.sleep(0.1)
        tab.do("Page.bringToFront")
        tab.value(WATCH)
        while not ended.wait(LOOK_S):
            shown = _says(tab, "window.shown") or shown
    return shown


def _says(tab: Tab, expression: str) -> Any:
    with suppress(TimeoutError, AssertionError):
        return tab.value(expression)
    return None


ATTACHED = {"alone": _alone, "client": _client, "page": _page}


@contextmanager
def quarter_of_a_core() -> Iterator[Path]:
    """Yield the file of a control group whose processes may use a quarter of a core.

    The group is removed when the context is left.
    """
    root = Path("/sys/fs/cgroup")
    unified = (root / "cgroup.controllers").exists()
    group = (root if unified else root / "cpu") / f"testbed-attached-{os.getpid()}"
    group.mkdir()
    quota = round(QUARTER * PERIOD_US)
    if unified:
        (root / "cgroup.subtree_control").write_text("+cpu")
        (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
    try:
        yield group / "cgroup.procs"
    finally:
        deadline = time.monotonic() + 10
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.1)  # the browser's last processes end
        group.rmdir()


def _late(shown: Mapping[str, float], directory: Path) -> Iterator[float]:
    """Yield the seconds from when an event or plan was known until the page showed it.

    An event is known when it happened, a plan when all members had reported their first round by it. What was known
    before the page was open is left out.
    """
    begun_s = shown.get("begun", 0.0)
    over: dict[int, dict[int, float]] = {}
    for report in read_records(directory / "rounds.jsonl"):
        rounds = over.setdefault(report["epoch"], {})
        rounds[report["round"]] = max(rounds.get(report["round"], 0.0), report["at_s"])
    for epoch, rounds in over.items():
        known_s = rounds[min(rounds)]
        if epoch and known_s > begun_s and (at_s := shown.get(f"plan {epoch}")) is not None:
            yield at_s - known_s
    named: set[str] = set()
    for event in read_records(directory / "events.jsonl"):
        at_s = shown.get(name := f"{event['kind']} {event['target']}")
        if name in named:
            continue  # the page notes when it first had one
        named.add(name)
        if at_s is not None and event["at_s"] > begun_s:
            yield at_s - event["at_s"]


if __name__ == "__main__":
    run_program(main)
