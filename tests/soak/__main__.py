"""`python -m tests.soak --pieces 3`: an elastic run with churn and swaps, and whether anything grows.

In each piece of 40 minutes a worker is killed every minute (it comes back in a new container), a link changes its rate
every 20 s, so that plans are swapped, and the network is swapped every 45 s. Meanwhile the memory, descriptors and
threads of each process are sampled, and the bytes on disk per round. Samples stay in the folder, so that pieces can be
made one at a time; the table is of all. The exit code is 1 where a slope differs from 0 beyond its error.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.run.running import NOTHING, REPOSITORY, TRAINS, Running
from tests.soak.held import on_disk, sample
from tests.soak.slope import slope

SAMPLE_S = 5.0
#: Samples that are left out: a young process loads code, fills caches and measures its links.
WARM_S = 180.0
KILL_S, CHANGE_S, SWAP_S = 60, 20, 45
WORKERS = ("paris-w0", "london-w0", "madrid-w0", "paris-w1")
#: The workers that are killed, in turn; the others live as long as the run. On a busy host a worker may still be away
#: when the other one is killed.
MORTAL = ("london-w0", "paris-w1")
RATES = ("4mbit", "20mbit")
TOPOLOGIES = REPOSITORY / "topologies"
NETWORKS = (TOPOLOGIES / "smoke-uplink.yaml", TOPOLOGIES / "smoke.yaml")


def experiment(seconds: int) -> dict[str, Any]:
    """Return an experiment that lasts longer than `seconds`."""
    events: list[dict[str, Any]] = []
    for number, at in enumerate(range(KILL_S, seconds, KILL_S)):
        events.append({"at": f"{at}s", "kill": MORTAL[number % len(MORTAL)]})
    for number, at in enumerate(range(CHANGE_S, seconds, CHANGE_S)):
        events.append({"at": f"{at}.5s", "change": {"link": "paris->london", "rate": RATES[number % len(RATES)]}})
    for number, at in enumerate(range(SWAP_S, seconds, SWAP_S)):
        events.append({"at": f"{at}.2s", "swap": str(NETWORKS[number % len(NETWORKS)])})
    return {
        "name": "soak",
        "topology": str(TOPOLOGIES / "smoke.yaml"),
        "train": {"model": "cnn", "batch": 16, "rounds": 1_000_000, "evaluate_every": 1000},
        "compute": {"step_time": "100ms"},
        "sync": {"policy": "auto"},
        "controller": {"period": "2s", "margin": 0.1, "dwell": 3},
        "elastic": {"quorum": len(WORKERS) - len(MORTAL), "lost": "restart", "lease": "5s"},
        "events": sorted(events, key=lambda event: float(event["at"][:-1])),
    }


def run_piece(folder: Path, seconds: int) -> None:
    """Run the experiment for `seconds`, and write samples to `samples.jsonl`."""
    folder.mkdir(parents=True)
    file = folder / "soak.yaml"
    file.write_text(yaml.safe_dump(experiment(seconds), sort_keys=False))
    with Running(folder, str(file)) as running, (folder / "samples.jsonl").open("w") as samples:
        running.wait_for(TRAINS)
        begun = time.monotonic()
        rounds, on_disk_before = 0, 0
        while (at_s := time.monotonic() - begun) < seconds and running.process.poll() is None:
            now = sample(running)
            with (running.directory / "rounds.jsonl").open("rb") as lines:
                finished, bytes_ = sum(1 for _ in lines), on_disk(running.directory)
            if finished > rounds:
                now["disk"] = {"bytes a member's round": (bytes_ - on_disk_before) / (finished - rounds)}
            rounds, on_disk_before = finished, bytes_
            print(json.dumps({"at_s": at_s, "held": now}), file=samples, flush=True)
            told = f"{folder.name}: {at_s / 60:5.1f} of {seconds / 60:.0f} minutes, {rounds} rounds"
            print(f"\r{told}", end="", flush=True)
            time.sleep(SAMPLE_S)
        print()
        assert running.process.poll() is None, running.output[-4000:]
        running.process.send_signal(signal.SIGINT)
        running.end()
    assert running.left_behind == NOTHING, running.left_behind


def read(root: Path) -> Iterator[tuple[str, str, list[tuple[float, float]]]]:
    """Yield (process, quantity, one life's values by time) of all pieces, each life without its beginning."""
    for file in sorted(root.glob("*/samples.jsonl")):
        lives: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        for line in map(json.loads, file.read_text().splitlines()):
            for process, quantities in line["held"].items():
                for quantity, value in quantities.items():
                    lives[process, quantity].append((line["at_s"], value))
        for (process, quantity), values in lives.items():
            yield process.split()[0], quantity, [each for each in values if each[0] - values[0][0] >= WARM_S]


def table(root: Path) -> bool:
    """Print each quantity's growth. Returns True if nothing grows."""
    lives: dict[tuple[str, str], list[list[tuple[float, float]]]] = defaultdict(list)
    for noun, quantity, values in read(root):
        lives[noun if noun not in WORKERS else "worker", quantity].append(values)
    steady = True
    print(f"{'process':12} {'quantity':24} {'level':>10} {'an hour':>12} {'±':>10}")
    for (noun, quantity), own in sorted(lives.items()):
        found = slope(own)
        if found is None:
            print(f"{noun:12} {quantity:24} too short")
            continue
        steady &= not found.differs
        mark = "grows" if found.differs and found.an_hour > 0 else "falls" if found.differs else ""
        print(f"{noun:12} {quantity:24} {found.mean:10.2f} {found.an_hour:+12.3f} {found.error:10.3f} {mark}")
    return steady


def main() -> int:
    """Make the pieces, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--pieces", type=int, default=1, help="to make now; 0 shows what was seen")
    parser.add_argument("--minutes", type=float, default=40.0, help="of each")
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "build" / "soak")
    args = parser.parse_args()
    for _ in range(args.pieces):
        number = len(list(args.folder.glob("*/samples.jsonl"))) + 1
        run_piece(args.folder / f"piece-{number}", round(60 * args.minutes))
    return 0 if table(args.folder) else 1


if __name__ == "__main__":
    sys.exit(main())
