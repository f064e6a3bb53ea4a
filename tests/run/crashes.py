"""Runs cut off while they write, and what can be read of them: `python -m tests.run.crashes --count 50 --full 10`.

A process writes a finished run anew, as fast as it goes, through what a run writes with. It is killed at a random
moment, every second time in the midst of a file that is written whole; every second one then loses the ends of its
logs, as where the power fails. Others write to a disk that gets full, a tmpfs, which takes root. What each leaves is
read and made a page of: nothing of it may be anything but what was written, and the page says how far the run came and
why it ended. `--run DIR` has another run written than a made-up one, `--seed N` repeats the cases.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

from testbed.report.opening import ended_early
from testbed.report.page import write_page, write_report
from testbed.report.record import RunRecord
from testbed.run.conclusion.conclude import failed
from testbed.run.directory import RunDirectory
from tests.report.runs import build_run

LOGS = ("links.jsonl", "traffic.jsonl", "events.jsonl", "rounds.jsonl", "decisions.jsonl", "estimates.jsonl")
WHOLE = ("plans/*.json", "views/*.json", "final.json", "manifest.json", "summary.json", "report.html")

#: A whole file takes about half a millisecond; a kill comes so much after its begin at the latest.
KILL_WITHIN_S = 1e-3
#: What is lost of the end of a log, at most.
LOST_BYTES = 4096
#: A disk has room for what a run makes at its beginning at least.
LEAST_DISK_BYTES = 128 * 1024
#: And so much more once somebody made room.
MORE_BYTES = 64 << 20

DIFFERS = "it does not hold the beginning of what was written: "


@dataclass(frozen=True)
class Write:
    """A file, and what writes to it next."""

    file: str
    do: Callable[[], object]

    @property
    def whole(self) -> bool:
        """Whether the file is written whole, and not appended to."""
        return self.file not in LOGS


def writes(source: Path, run: RunDirectory) -> Iterator[Write]:
    """All that a finished run wrote, in the order of time."""
    manifest = json.loads((source / "manifest.json").read_text())
    began = {**manifest, **(run.read_whole("manifest.json") or {})}
    ended = {name: began.pop(name) for name in ("training_started_s", "ended_s")}
    yield Write("manifest.json", partial(run.write, "manifest.json", began))
    plans = {file: json.loads(file.read_text()) for file in sorted(source.glob("plans/*.json"))}
    views = {file: json.loads(file.read_text()) for file in sorted(source.glob("views/*.json"))}
    lines = [(file, line) for file in LOGS for line in written(source, file)]
    started = False
    for file, line in sorted(lines, key=lambda each: float(each[1]["at_s"])):
        if not started and line["at_s"] >= ended["training_started_s"]:
            started = True
            begun = {**began, "training_started_s": ended["training_started_s"]}
            yield Write("manifest.json", partial(run.write, "manifest.json", begun))
        if file == "decisions.jsonl":
            for waiting in (plans, views):
                if waiting:
                    path = next(iter(waiting))
                    name = path.relative_to(source).as_posix()
                    yield Write(name, partial(run.write, name, waiting.pop(path)))
        yield Write(file, partial(run.append, file, line))
    yield Write("manifest.json", partial(run.write, "manifest.json", {**began, **ended}))
    summary = json.loads((source / "summary.json").read_text())
    yield Write("summary.json", partial(run.write, "summary.json", summary))
    yield Write("report.html", partial(write_report, run.path))


def write(source: Path, root: Path, tell: Callable[[Write], None]) -> None:
    """Write a finished run anew into `root`; `tell` hears of each write before it is done. As `execute` does, it leaves
    a summary of what went wrong."""
    run = RunDirectory("crash", root)
    try:
        for each in writes(source, run):
            tell(each)
            each.do()
    except OSError as error:
        failed(run, str(error))
    finally:
        run.close()


def killed(source: Path, root: Path, draw: random.Random) -> None:
    """Have a process write a run, and kill it at a random moment; or let it end, where that came first."""
    steps = list(writes(source, RunDirectory("trial", root / "trial")))
    whole = [number for number, step in enumerate(steps) if step.whole]
    number = draw.choice(whole) if draw.random() < 0.5 else draw.randrange(len(steps))
    heard, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(heard)
        try:
            write(source, root, lambda _: os.write(told, b"."))
        finally:
            os._exit(0)
    os.close(told)
    with os.fdopen(heard, "rb", buffering=0) as words:
        left = number + 1
        while left and (word := words.read(left)):
            left -= len(word)
        until = time.perf_counter() + draw.uniform(0, KILL_WITHIN_S)
        while time.perf_counter() < until:
            pass
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if draw.random() < 0.5:
        lose_ends(root, draw)


def lose_ends(root: Path, draw: random.Random) -> None:
    """Cut the logs off somewhere before their ends."""
    for file in root.glob("crash-*/*.jsonl"):
        os.truncate(file, max(file.stat().st_size - draw.randrange(LOST_BYTES), 0))


@contextmanager
def disk(folder: Path, size: int) -> Iterator[Path]:
    """A file system of so many bytes."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "crashes", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def filled(source: Path, root: Path, size: int) -> None:
    """Write a run to a disk that has no room for all of it; then have it read, before and after room is made."""
    with disk(root, size) as folder:
        write(source, folder, lambda _: None)
        (run,) = folder.glob("crash-*")
        record = check(source, run)
        assert not record.finished, f"{size} bytes were enough"
        named = [reason for reason in ended_early(record) if "No space left on device" in reason and str(run) in reason]
        assert named, f"the full disk is not named: {ended_early(record)}"
        subprocess.run(["mount", "-o", f"remount,size={size + MORE_BYTES}", folder], check=True)
        check_page(record)


def check(source: Path, run: Path) -> RunRecord:
    """Hold what a run left against what was written; the run, as the report reads it."""
    for pattern in WHOLE:
        for file in run.glob(pattern):
            if file.suffix == ".json":
                json.loads(file.read_text())
            else:
                assert file.read_text().rstrip().endswith("</html>"), f"{DIFFERS}{file.name}"
    for name in LOGS:
        found = _lines(run / name)
        assert found == written(source, name)[: len(found)], f"{DIFFERS}{name}"
    return RunRecord.read(run)


def check_page(record: RunRecord) -> str:
    """Make the page; why it ended early, in the words that stand in it."""
    page = unescape(write_page(record).read_text())
    if record.finished:
        return "at its end"
    reasons = ended_early(record)
    assert reasons and all(reason in page for reason in (*reasons, *record.gaps))
    return re.sub(r"\d+ s into training,.*", "in training", reasons[0].partition(";")[0])


def written(source: Path, log: str) -> list[dict[str, Any]]:
    """What is written anew to a log, in that order."""
    return sorted(_lines(source / log), key=lambda line: float(line["at_s"]))


def _lines(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a log; only the last one may be none."""
    if not file.exists():
        return []
    *whole, last = file.read_bytes().split(b"\n")
    lines = [json.loads(line) for line in whole]
    return lines + ([json.loads(last)] if last.endswith(b"}") and _is_json(last) else [])


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def campaign(source: Path, folder: Path, count: int, full: int, seed: int) -> Counter[str]:
    """So many runs killed and so many disks filled; how many ended where. AssertionError for one that can't be read."""
    found: Counter[str] = Counter()
    for case in range(count):
        root = folder / f"killed-{case}"
        killed(source, root, random.Random(f"{seed} killed {case}"))
        runs = list(root.glob("crash-*"))
        found.update(check_page(check(source, run)) for run in runs)
        found["before it had a directory"] += not runs
    took = sum(file.stat().st_size for file in source.rglob("*"))
    for case in range(full):
        size = random.Random(f"{seed} full {case}").randrange(LEAST_DISK_BYTES, took)
        filled(source, folder / f"full-{case}", size)
        found["the disk was full"] += 1
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.run.crashes", description=__doc__)
    parser.add_argument("--count", type=int, default=50, help="runs to kill")
    parser.add_argument("--full", type=int, default=10, help="disks to fill")
    parser.add_argument("--run", type=Path, metavar="DIR", help="a finished run to write anew")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="crashes") as folder:
        source = args.run or build_run(Path(folder) / "source")
        for ended, times in campaign(source, Path(folder), args.count, args.full, args.seed).most_common():
            print(f"{times:4}  {ended}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
