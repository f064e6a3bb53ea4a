"""`python -m tests.chaos --runs 300 --seed 1 [--resume]`: execute cases, check their records, and print a table.

`--case N` executes one case again, `--show` prints the table of the cases that were executed. `--planted` executes
plain cases with each bug of planted.py instead, three seeds each, and fails where the checker misses a bug. The records
of each case are in a folder of build/chaos.

`--case N --shrink` makes a case that breaks a rule smaller while it breaks the same rule, and keeps the smallest.
`--from FOLDER` executes the case whose files are in a folder, also after they were edited.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from testbed.telemetry.store import write_json
from tests.chaos.case import Case
from tests.chaos.checker import check
from tests.chaos.faults import StepClock
from tests.chaos.history import History, first_round_after
from tests.chaos.nemesis import execute
from tests.chaos.planted import BUGS, NEED_A_DEATH, NEED_CONTAINERS, Bug
from tests.chaos.shrink import TRIES, shrink
from tests.run.running import REPOSITORY

RESULTS = REPOSITORY / "build" / "chaos"
RESULT = "result.json"
SEEDS_OF_A_BUG = 3
NO_BUG = "no-bug"


def attempt(case: Case, folder: Path, bug: Bug | None = None) -> dict[str, Any]:
    """Execute a case in a folder, which is emptied first; write its result there, and return it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    history = execute(case, folder, bug)
    (folder / "output.txt").write_text(history.execution.output)
    result = {
        "case": str(case),
        "findings": check(history),
        "code": history.execution.code,
        "finished": history.finished,
        "reasons": list(history.reasons),
        "faults": [_figures(history, i) for i in range(len(history.execution.injections))],
    }
    write_json(folder / RESULT, result)
    return result


def _figures(history: History, number: int) -> dict[str, Any]:
    """Return how long after a fault the run ended because of it, or completed its first new round."""
    injection = history.execution.injections[number]
    ended_s = None if history.finished else history.execution.ended_s - injection.began_s
    after_s = first_round_after(history.execution, injection.began_s)
    # After StepClock, the times of rounds are not those of this process.
    told = after_s is not None and history.finished and not history.case.has(StepClock)
    recovered_s = after_s - injection.began_s if told else None
    kind = injection.fault.kind
    return {"kind": kind, "missed": injection.missed, "ended_s": ended_s, "recovered_s": recovered_s}


def show(results: Sequence[Mapping[str, Any]]) -> bool:
    """Print a table of the kinds of faults, and the rules that were broken. Returns True if none was.

    For each kind: how often it was injected, how many runs went on and how many ended, how soon (median and worst), and
    how many broke a rule.
    """
    kinds: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for result in results:
        for fault in result["faults"]:
            if not fault["missed"]:
                kinds[fault["kind"]].append({**fault, "wrong": bool(result["findings"])})
    print(f"{'fault':22} {'runs':>5} {'went on':>8} {'next round, s':>15} {'ended':>6} {'after, s':>15} {'wrong':>6}")
    for kind, its in sorted(kinds.items()):
        went_on = [fault["recovered_s"] for fault in its if fault["recovered_s"] is not None]
        ended = [fault["ended_s"] for fault in its if fault["ended_s"] is not None]
        wrong = sum(fault["wrong"] for fault in its)
        figures = f"{_spread(went_on):>15} {len(ended):6} {_spread(ended):>15}"
        print(f"{kind:22} {len(its):5} {len(its) - len(ended):8} {figures} {wrong:6}")
    rules = Counter(rule for result in results for rule in result["findings"])
    for rule, count in rules.most_common():
        print(f"{rule}: broken by {count}")
    failed = sum(bool(result["findings"]) for result in results)
    print(f"{len(results)} runs, {failed} of them with findings")
    return not failed


def _spread(seconds: list[float]) -> str:
    return f"{median(seconds):.1f} to {max(seconds):.1f}" if seconds else ""


def print_result(name: str, result: Mapping[str, Any]) -> None:
    """Print how a case ended, in a line, and the checker's findings."""
    end = "went on" if result["finished"] else f"ended with {result['code']}"
    print(f"{name}: {result['case']}: {end}", flush=True)
    for rule, findings in result["findings"].items():
        for finding in findings:
            print(f"    {rule}: {finding}", flush=True)


def campaign(seed: int, numbers: Iterable[int], resume: bool) -> bool:
    """Execute cases of a seed and print their table. Returns True if nothing was found."""
    results = []
    for number in numbers:
        folder = RESULTS / str(seed) / str(number)
        if resume and (folder / RESULT).exists():
            results.append(json.loads((folder / RESULT).read_text()))
            continue
        results.append(attempt(Case.drawn(seed, number), folder))
        print_result(f"--seed {seed} --case {number}", results[-1])
    return show(results)


def stored_results(seed: int, numbers: Iterable[int]) -> list[dict[str, Any]]:
    """Return the results of those of a seed's cases that were executed."""
    files = (RESULTS / str(seed) / str(number) / RESULT for number in numbers)
    return [json.loads(file.read_text()) for file in files if file.exists()]


def run_planted(names: Iterable[str], seed: int, resume: bool) -> bool:
    """Execute each of these bugs with three seeds, and the same cases without a bug.

    Returns:
        True if the checker found each bug by the bug's rule, and nothing in the cases without one.
    """
    wrong = []
    for name in (NO_BUG, *names):
        for each in range(seed, seed + SEEDS_OF_A_BUG):
            folder = RESULTS / "planted" / name / str(each)
            if resume and (folder / RESULT).exists():
                result = json.loads((folder / RESULT).read_text())
            else:
                bug = None if name == NO_BUG else Bug(name, each)
                result = attempt(planted_case(name, each), folder, bug)
            print_result(f"{name}, seed {each}", result)
            found = result["findings"]
            wrong += [] if (BUGS[name] in found if name in BUGS else not found) else [f"{name}, seed {each}"]
    print(f"not as it should be: {', '.join(wrong)}" if wrong else "all planted bugs were found, and no other")
    return not wrong


def planted_case(name: str, seed: int) -> Case:
    """Return the plain case in which a bug shows."""
    return Case.plain(seed, name in NEED_CONTAINERS, Bug(name, seed).round if name in NEED_A_DEATH else None)


def shrink_case(case: Case, folder: Path, bug: Bug | None = None) -> bool:
    """Shrink a case, and keep the smallest that breaks the same rule in `folder`/shrunk.

    Returns:
        True if the case broke no rule.
    """
    began, executions, attempts, shrunk = time.monotonic(), 0, folder / "attempt", folder / "shrunk"

    def broken(candidate: Case) -> Mapping[str, Any]:
        nonlocal executions
        executions += 1
        result = attempt(candidate, attempts, bug)
        print_result(f"execution {executions}, {candidate.rounds} rounds", result)
        return dict(result["findings"])

    def keep() -> None:
        shutil.rmtree(shrunk, ignore_errors=True)
        shutil.copytree(attempts, shrunk, symlinks=True)

    rule = next((rule for _ in range(TRIES) for rule in broken(case)), None)
    if rule is None:
        print(f"the case broke no rule in {TRIES} executions: nothing to shrink")
        return True
    keep()

    def fails(candidate: Case) -> bool:
        if again := rule in broken(candidate):
            keep()
        return again

    smallest = shrink(case, fails)
    print(
        f"{rule} is broken by the smallest case found, after {executions} executions, {time.monotonic() - began:.0f} s:"
    )
    print(f"    from {case}, {case.rounds} rounds\n      to {smallest}, {smallest.rounds} rounds")
    planted = f" --planted {bug.name} --seed {bug.seed}" if bug else ""
    print(f"repeat it: python -m tests.chaos --from {shrunk}{planted}")
    return False


def main() -> int:
    """Return the exit code: 1 if something was found, or a planted bug was not."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=300, metavar="N", help="cases 0 to N-1 of the seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, metavar="N", help="this one alone")
    parser.add_argument("--resume", action="store_true", help="leave out what has a result already")
    parser.add_argument("--show", action="store_true", help="what came of those that were executed, and no more")
    parser.add_argument("--planted", nargs="?", const="all", choices=("all", *BUGS), help="the bugs, or one of them")
    parser.add_argument("--shrink", action="store_true", help="make the --case, or the --planted bug's, smaller")
    parser.add_argument("--from", dest="files", type=Path, metavar="FOLDER", help="execute the case of these files")
    args = parser.parse_args()
    if args.shrink and args.case is None and args.planted in (None, "all") and args.files is None:
        parser.error("--shrink needs a case: --case N, --from FOLDER, or --planted NAME")
    if args.files and args.planted == "all":
        parser.error("--from FOLDER takes one bug: --planted NAME")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what is there is taken away first
    if args.files or args.shrink:
        bug = Bug(args.planted, args.seed) if args.planted else None
        if args.files:
            case = Case.read(args.files)
        else:
            case = planted_case(args.planted, args.seed) if bug else Case.drawn(args.seed, args.case)
        place = RESULTS / "shrink" / (bug.name if bug else str(case.seed)) / str(case.seed if bug else case.number)
        if args.shrink:
            fine = shrink_case(case, place, bug)
        else:
            print_result(str(args.files), result := attempt(case, place / "again", bug))
            fine = not result["findings"]
    elif args.planted:
        fine = run_planted(BUGS if args.planted == "all" else (args.planted,), args.seed, args.resume)
    else:
        numbers = range(args.runs) if args.case is None else (args.case,)
        fine = show(stored_results(args.seed, numbers)) if args.show else campaign(args.seed, numbers, args.resume)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
