"""`python -m tests.fuzz --seconds 600 [--resume]`: search each target, and print a table; exit code 1 for a finding.

Results stay in build/fuzz, in pieces of minutes, so that an ended search continues with `--resume`; without it all
targets are searched again, from the kept inputs. A finding is a file there, beside its traceback and the command that
feeds it again; once repaired, it goes into tests/fuzz/corpus/TARGET, which the suite feeds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from testbed.cli.console import CANNOT
from testbed.telemetry.store import write_json
from tests.fuzz import shaping_core, targets
from tests.fuzz.search import CORE
from tests.fuzz.target import ROOT

NAMES = (CORE, *targets.NAMES)
#: Seconds of a piece: long beside the instrumentation of a target's readers, up to half a minute of a processor.
PIECE_S = 300

#: Figures in libFuzzer's output, of which the last count, and in that of core/world.c.
EXECUTIONS = re.compile(r"^stat::number_of_executed_units: (\d+)", re.MULTILINE)
MESSAGES = re.compile(r"^stat::messages: (\d+)", re.MULTILINE)
COVERAGE = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)")
ARTIFACT = re.compile(r"Test unit written to (\S+)")


@dataclass(frozen=True, slots=True)
class Search:
    """The results of searching one target so far."""

    target: str
    seconds: int = 0
    executions: int = 0
    #: Messages of the kernel that the core read.
    messages: int = 0
    edges: int = 0
    corpus: int = 0
    #: libFuzzer's output about the finding; None without one.
    finding: str | None = None

    def continued(self, seconds: int, folder: Path) -> Search:
        """Search for another `seconds` in a process of its own, and return the sum."""
        command = [sys.executable, "-m", "tests.fuzz.search", self.target, str(seconds), str(folder)]
        done = subprocess.run(command, cwd=ROOT, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, check=False)
        said = done.stdout.decode(errors="replace")
        coverage = COVERAGE.findall(said)
        edges, _, corpus = coverage[-1] if coverage else (0, 0, 0)
        return replace(
            self,
            seconds=self.seconds + seconds,
            executions=self.executions + _last(EXECUTIONS, said),
            messages=self.messages + _last(MESSAGES, said),
            edges=int(edges),
            corpus=int(corpus),
            finding=None if done.returncode == 0 else _described(self.target, said),
        )


def _last(pattern: re.Pattern[str], said: str) -> int:
    found = pattern.findall(said)
    return int(found[-1]) if found else 0


def _described(target: str, said: str) -> str:
    """Return the traceback or libFuzzer's error, and the command that feeds the input again."""
    begin = min(
        (at for word in ("=== Uncaught Python", "ERROR: ", "runtime error: ") if (at := said.find(word)) >= 0),
        default=-4000,
    )
    what = said[begin:][:4000].rstrip()
    if (artifact := ARTIFACT.search(said)) is None:
        return what
    described = f"{what}\n\npython -m tests.fuzz --target {target} --replay {artifact[1]}\n"
    Path(f"{artifact[1]}.txt").write_text(described)
    return described


def search(target: str, seconds: int, folder: Path, resume: bool) -> Search:
    """Search one target, piece by piece, for `seconds` in all or until something is found."""
    file = folder / f"{target}.json"
    done = Search(**json.loads(file.read_text())) if resume and file.exists() else Search(target)
    while done.finding is None and done.seconds < seconds:
        done = done.continued(min(PIECE_S, seconds - done.seconds), folder)
        write_json(file, asdict(done))
    return done


def show(done: Sequence[Search]) -> None:
    """Print a table, and the findings in full."""
    columns = f"{'seconds':>8} {'executions':>11} {'messages':>10} {'branches':>9} {'corpus':>7} findings"
    print(f"{'target':18} {columns}")
    for each in done:
        figures = f"{each.seconds:8} {each.executions:11} {each.messages:10} {each.edges:9} {each.corpus:7}"
        print(f"{each.target:18} {figures} {int(each.finding is not None)}")
    for each in done:
        if each.finding:
            print(f"\n{each.target}: {each.finding}")


def replay(target: str, files: Sequence[Path]) -> int:
    """Feed files once more, and return the exit code. Errors are raised."""
    with tempfile.TemporaryDirectory() as place:
        if target == CORE:
            return subprocess.run([shaping_core.build_replay(Path(place)), *files], check=False).returncode
        with targets.target(target).fed(Path(place)) as feed:
            for file in files:
                feed(file.read_bytes())
    return 0


def main() -> int:
    """Search or replay, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="of searching, for each target")
    parser.add_argument("--target", choices=NAMES, action="append", help="these alone")
    parser.add_argument("--resume", action="store_true", help="go on with what was searched")
    parser.add_argument("--replay", type=Path, nargs="+", metavar="FILE", help="feed these to the target instead")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz", help="for the corpus and the findings")
    args = parser.parse_args()
    wanted = args.target or NAMES
    if args.replay:
        return replay(wanted[0], args.replay)
    if set(wanted) - {CORE} and find_spec("atheris") is None:
        print("There is no atheris here: make fuzz installs it, on x86-64 with a Python before 3.14.", file=sys.stderr)
        return CANNOT
    args.folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(lambda target: search(target, args.seconds, args.folder, args.resume), wanted))
    show(done)
    return 1 if any(each.finding for each in done) else 0


if __name__ == "__main__":
    sys.exit(main())
