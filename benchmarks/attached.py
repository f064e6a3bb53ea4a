"""Does looking at a run disturb it? The quickstart with nobody there, a program at its API, and its page open.

alone    nobody asks
client   a program follows the stream at the run's socket, and asks for the status once a second
page     a browser that is held to a quarter of a core shows the page all the time

For each: how many of the runs were `trusted`, and what of a core the run's own process and its controller took. What
that is more than alone, which is measured twice, is the API's. Of the page: how long after an event, and after a plan's
first round was over, it was shown.
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
from benchmarks.support.table import Table, progress, show
from testbed.emulation import label
from testbed.emulation.standing.standing import RUN_SOCKET, client
from testbed.telemetry.store import read_records
from tests.page.browser import Browser, Tab

ROOT = Path(__file__).parents[1]
EXPERIMENT = "experiments/quickstart.yaml"

REPEATS, QUICK_REPEATS, ALONE = 5, 1, 2
CORE_PART, SHOWN_WITHIN_S = 0.1, 1.0

#: Of a core, for the browser.
QUARTER, PERIOD_US = 0.25, 100_000
LOOK_S = 1.0

#: What the page notes: since when it does, when it first drew a plan's trees, and when its log first had an event.
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
    """Of one run: its verdict, the part of a core that its process and its controller took from the moment it trained,
    and, of a page, seconds until what happened was shown."""

    verdict: str
    reasons: list[str]
    core: float
    shown_s: list[float] = field(default_factory=list)


def main() -> int:
    parser = Options(__doc__)
    parser.add_repeats(REPEATS, QUICK_REPEATS)
    parser.add_argument("--experiment", default=EXPERIMENT)
    args = parser.parse()
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
            f"{len(shown)} swaps and events were shown {median(shown):.2f} s after they were known at the median, "
            f"{shown[-1]:.2f} s at most ({SHOWN_WITHIN_S:.0f} wanted)"
        )
    figures: dict[str, Any] = {
        "trusted": {name: sum(one.verdict == "trusted" for one in runs) for name, runs in found.items()},
        "core": {name: [one.core for one in runs] for name, runs in found.items()},
        "shown_s": shown,
        "repeats": args.repeats,
    }
    heads = ("", "trusted", "of a core", f"more than alone ({CORE_PART:.0%} wanted at most)")
    show([Table("a run that is looked at", heads, rows, notes)], figures, as_json=args.json)
    return 0


def _run(experiment: str, attach: Callable[[str, threading.Event], Mapping[str, float]]) -> Measured:
    """One run, looked at while it trains."""
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
    """All that it says."""
    assert process.stdout is not None
    lines.extend(process.stdout)


def _name(folder: Path, process: subprocess.Popen[str]) -> str | None:
    """The run's, once it trains; None where it ends before."""
    while process.poll() is None:
        with suppress(OSError):
            name = (folder / "runs" / "latest").resolve(strict=True).name
            if (label.state_folder(name) / "page.html").exists():
                return name
        time.sleep(0.1)
    return None


def _look(process: subprocess.Popen[str], ended: threading.Event, looks: list[tuple[float, float]]) -> None:
    """The time, and what its process has taken of a processor by then, in seconds, until it ends."""
    while process.poll() is None:
        with suppress(OSError, IndexError):
            used_s = sum(map(cpu_seconds, (process.pid, *_controllers(process.pid))))
            looks.append((time.monotonic(), used_s))
        time.sleep(LOOK_S)
    ended.set()


def _controllers(owner: int) -> list[int]:
    """Of a run's process, the one that plans for it and answers for its members."""
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
    """The file to write processes into that are to have no more than that; its group is taken away again."""
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
    """Seconds from what was known to what was shown: events as they happened, plans when all had reported their first
    round. What was known before the page was there is none of these."""
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
    sys.exit(main())
