"""Tests of the tests: `python -m tests.mutants --seed 1` changes the source in small ways and counts what finds it.

A mutant is one change of one line: a comparison turned, a sign, an off-by-one, a dropped call, two arguments swapped.
Seven are drawn by the seed from each of ROOMS. Each is tried in a copy of the checkout, up to the first failure:
against the pure and local tests that mirror its file, those of its room, those of the rooms that import it, then the
tour. A test that fails without any change would kill every mutant, so `.ci/run` must have passed on this very commit;
if it has not, the first call runs all these tests on an unchanged copy. Results are lines of build/mutants/SEED.jsonl,
and a second call goes on after the last one.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.changed import ALWAYS, mirrored
from tests.marked import marked
from tests.test_imports import ARROWS

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("sync", "schemes", "controller", "planning", "emulation", "spec", "trace")
EACH = 7

#: The part of killed mutants that the gate is to reach.
WANTED = 0.85

#: A test that hangs has found the mutant, too: what it waits for is waited for this part of the usual time.
PATIENCE = "0.1"

#: Seconds that the tests of one mutant may take before it counts as killed by a hang.
LIMIT_S = 1200.0

WITHOUT_ROOT = ["-m", "(pure or local) and not long", "-n", "2", "--dist=worksteal"]
TOUR = ["-m", "tour", *marked(["tour"])]

TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
}
SIGNS: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the `number`th place in the file, in the order of `ast.walk`, that this kind of change fits."""

    room: str
    file: str
    line: int
    kind: str
    number: int

    @property
    def key(self) -> str:
        return f"{self.file}:{self.line} {self.kind} {self.number}"

    def applied(self, source: str) -> str:
        """Return the file with the change. The text outside of the changed expression stays as it is."""
        node = [node for node in places(source) if self.kind in kinds(node)][self.number]
        start, end = (
            position(source, node.lineno, node.col_offset),
            position(source, node.end_lineno, node.end_col_offset),
        )
        change(node)
        return source[:start] + ast.unparse(ast.fix_missing_locations(node)) + source[end:]


def places(source: str) -> list[Any]:
    """Return the nodes that a change may stand at. Those of f-strings are left out: Python 3.11 misplaces them."""
    tree = ast.parse(source)
    inside = {id(part) for text in ast.walk(tree) if isinstance(text, ast.JoinedStr) for part in ast.walk(text)}
    return [node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.stmt) and id(node) not in inside]


def position(source: str, line: int, column: int) -> int:
    """Return the index of a node's position, whose `line` counts from 1 and whose `column` counts bytes."""
    lines = source.splitlines(keepends=True)
    return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())


def kinds(node: ast.AST) -> tuple[str, ...]:
    """Return the kinds of change that fit a node. Calls that log are left out: nothing but a text depends on them."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in TURNED:
            return ("comparison turned",)
        case ast.BinOp(op=op) if type(op) in SIGNS:
            return ("sign",)
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return ("off by one",)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log")))):
            return ()
        case ast.Expr(value=ast.Call()):
            return ("dropped call",)
        case ast.Call(args=[first, second, *_]) if ast.dump(first) != ast.dump(second):
            return ("swapped arguments",)
    return ()


def change(node: ast.AST) -> None:
    """Make the change in place."""
    match node:
        case ast.Compare():
            node.ops = [TURNED[type(node.ops[0])]()]
        case ast.BinOp():
            node.op = SIGNS[type(node.op)]()
        case ast.Constant(value=int() as value):
            node.value = value + 1
        case ast.Expr():
            node.value = ast.Constant(value=None)
        case ast.Call():
            node.args[0], node.args[1] = node.args[1], node.args[0]


def candidates(room: str) -> Iterator[Mutant]:
    """Every change that fits a line of the room's files."""
    for path in sorted((ROOT / "testbed" / room).rglob("*.py")):
        file = str(path.relative_to(ROOT))
        counts: dict[str, int] = {}
        for node in places(path.read_text()):
            for kind in kinds(node):
                yield Mutant(room, file, node.lineno, kind, counts.setdefault(kind, 0))
                counts[kind] += 1


def drawn(seed: int) -> list[Mutant]:
    """Seven of each room, every kind as likely as the others."""
    chance = random.Random(seed)
    found = []
    for room in ROOMS:
        by_kind: dict[str, list[Mutant]] = {}
        for mutant in candidates(room):
            by_kind.setdefault(mutant.kind, []).append(mutant)
        for _ in range(EACH):
            among = by_kind[chance.choice(sorted(by_kind))]
            found.append(among.pop(chance.randrange(len(among))))
    return found


def rooms_that_import(room: str) -> list[str]:
    """Return the room and the rooms that import it, by the arrows of tests/test_imports.py."""
    return [room, *sorted(name for name, targets in ARROWS.items() if room in targets and name.isidentifier())]


@contextmanager
def checkout() -> Iterator[Path]:
    """Copy the files that git tracks, for a mutant to stand in; the copy uses this checkout's environment."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        there = Path(folder) / "main"
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in tracked.splitlines():
            if (ROOT / name).is_file():
                (there / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, there / name)
        (there / ".venv").symlink_to(ROOT / ".venv")
        yield there


def room_tests(rooms: Iterable[str]) -> list[str]:
    """Return the paths of the rooms' tests, from the root."""
    paths = [path for room in rooms for path in (f"tests/{room}", f"tests/test_{room}.py")]
    return [path for path in paths if (ROOT / path).exists()]


def stages(mutant: Mutant) -> Iterator[tuple[str, list[str]]]:
    """Yield the tests that a mutant is tried against, cheap ones first: a name, and pytest's words."""
    mirror = [test for test in mirrored([mutant.file]) if test not in ALWAYS]
    if mirror != room_tests([mutant.room])[:1]:
        yield "its file's tests", [*WITHOUT_ROOT, *mirror]
    yield "its room", [*WITHOUT_ROOT, *room_tests([mutant.room])]
    yield "rooms that import it", [*WITHOUT_ROOT, *room_tests(rooms_that_import(mutant.room)[1:])]
    yield "the tour", TOUR


def first_failure(there: Path, words: list[str]) -> str:
    """Run pytest up to the first failure. Returns the failure, or "" if all tests passed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *words]
    environment = {**os.environ, "PYTHONPATH": str(there), "TESTBED_TEST_PATIENCE": PATIENCE}
    try:
        done = subprocess.run(
            command, cwd=there, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT_S:g} s"
    if done.returncode == 0:
        return ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0][:200] if failed else done.stdout[-200:] or done.stderr[-200:]


def check_unchanged() -> None:
    """Run the tests of every room and the tour on an unchanged copy. Exits with the first failure."""
    rooms = sorted({other for room in ROOMS for other in rooms_that_import(room)})
    with checkout() as there:
        for words in ([*WITHOUT_ROOT, *room_tests(rooms)], TOUR):
            if failure := first_failure(there, words):
                sys.exit(f"a test fails without any change, and would kill every mutant: {failure}")


def passed_ci() -> bool:
    """Return whether `.ci/run` passed on what stands in this checkout."""
    passed = ROOT / "build" / "ci.passed"
    git = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=True)
    head, changed = (git(["git", *words]).stdout for words in (("rev-parse", "HEAD"), ("status", "--porcelain")))
    return passed.exists() and passed.read_text().strip() == head.strip() and not changed


def tried(mutant: Mutant) -> dict[str, object]:
    """Try one mutant. Returns its line of results."""
    began = time.monotonic()
    with checkout() as there:
        file = there / mutant.file
        file.write_text(mutant.applied(file.read_text()))
        found = by = ""
        for name, words in stages(mutant):
            if found := first_failure(there, words):
                by = name
                break
    seconds = round(time.monotonic() - began, 1)
    return {**asdict(mutant), "killed": bool(found), "by": by, "found": found, "seconds": seconds}


def main() -> int:
    """Try the mutants that were not tried yet, and print the part that was killed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=1)
    seed = parser.parse_args().seed
    results = ROOT / "build" / "mutants" / f"{seed}.jsonl"
    results.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    done = {Mutant(**{name: line[name] for name in ("room", "file", "line", "kind", "number")}).key for line in lines}
    mutants = drawn(seed)
    if not results.exists() and not passed_ci():
        check_unchanged()
    for number, mutant in enumerate(mutants, 1):
        if mutant.key not in done:
            line = tried(mutant)
            lines.append(line)
            with results.open("a") as out:
                out.write(json.dumps(line) + "\n")
            said = f"killed by {line['by']}" if line["killed"] else "LIVES"
            print(f"{number} of {len(mutants)}  {mutant.key}: {said}, {line['seconds']} s", flush=True)
    killed = sum(line["killed"] for line in lines)
    for line in lines:
        if not line["killed"]:
            print(f"lives: {line['file']}:{line['line']} {line['kind']} {line['number']}")
    print(f"{killed} of {len(lines)} killed, {killed / len(lines):.0%}; {WANTED:.0%} wanted")
    return int(killed < WANTED * len(lines))


if __name__ == "__main__":
    sys.exit(main())
