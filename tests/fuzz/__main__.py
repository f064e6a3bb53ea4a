"""`python -m tests.fuzz --seconds 60`: all targets searched; exit code 1 where something was found."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.targets import ROOT, TARGETS

#: libFuzzer's words, of which the last count.
EXECUTIONS = re.compile(r"^stat::number_of_executed_units: (\d+)", re.MULTILINE)
COVERAGE = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)")
ARTIFACT = re.compile(r"Test unit written to (\S+)")


@dataclass(frozen=True, slots=True)
class Search:
    """What a search of one target came to. `finding` is what libFuzzer said of it, None where there is none."""

    target: str
    executions: int
    edges: int
    corpus: int
    finding: str | None


def search(target: str, seconds: int, folder: Path) -> Search:
    """Search one target in a process of its own."""
    command = [sys.executable, "-m", "tests.fuzz.search", target, str(seconds), str(folder)]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, check=False)
    said = done.stdout.decode(errors="replace")
    executions, coverage = EXECUTIONS.search(said), COVERAGE.findall(said)
    edges, _, corpus = coverage[-1] if coverage else (0, 0, 0)
    finding = None if done.returncode == 0 else _words(said)
    return Search(target, int(executions[1]) if executions else 0, int(edges), int(corpus), finding)


def _words(said: str) -> str:
    """The traceback or libFuzzer's error, and the file that caused it."""
    begin = max(said.find("=== Uncaught Python exception"), said.find("ERROR: libFuzzer"))
    artifact = ARTIFACT.search(said)
    what = said[begin:][:4000] if begin >= 0 else said[-4000:]
    return f"{what.rstrip()}\n    the file: {artifact[1] if artifact else 'none was written'}"


def show(done: Sequence[Search]) -> None:
    """A table, and the findings in full."""
    print(f"{'target':12} {'executions':>10} {'branches reached':>16} {'corpus':>7} findings")
    for each in done:
        print(f"{each.target:12} {each.executions:10} {each.edges:16} {each.corpus:7} {int(each.finding is not None)}")
    executions, found = sum(each.executions for each in done), [each for each in done if each.finding]
    print(f"{'all':12} {executions:10} {sum(e.edges for e in done):16} {sum(e.corpus for e in done):7} {len(found)}")
    for each in found:
        print(f"\n{each.target}: {each.finding}")


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="of searching, over all targets")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append", help="these alone")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz", help="for the corpus and the findings")
    args = parser.parse_args()
    targets, at_once = args.target or sorted(TARGETS), os.cpu_count() or 1
    share = max(1, args.seconds * min(at_once, len(targets)) // len(targets))
    with ThreadPoolExecutor(at_once) as pool:
        done = list(pool.map(lambda target: search(target, share, args.folder), targets))
    show(done)
    return 1 if any(each.finding for each in done) else 0


if __name__ == "__main__":
    sys.exit(main())
