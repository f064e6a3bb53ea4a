"""How large classes, functions and modules may be: `python -m tests.sizes` lists those that are larger.

What is larger is harder to read than it has to be. Those in tests/larger.json are so as yet, each with its size: they
may shrink and leave the list, not grow. So with names in tests/doubled.json that several classes have.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "testbed"

#: The most of each kind.
LIMITS: Mapping[str, int] = {
    "attributes of a class": 12,
    "methods of a class": 20,
    "arguments of a constructor": 7,
    "lines of a function": 60,
    "imports of the project's modules": 12,
}

#: What is larger for a reason; three at most.
EXCEPTIONS: Mapping[str, str] = {
    "sync/session.py": "brings together all that a member of a run has: that is what a session is",
    "sync/allreduce/group.py": "brings together what a round goes through; each of those modules is a noun of its own",
    "sync/allreduce/elastic.py": "brings together groups, and what recovery and new members take",
}

#: Values that mirror a user's file or travel as they are have as many fields as those have; so do reports of figures.
VALUES = (
    "spec/",
    "protocol.py",
    "workload.py",
    "plan.py",
    "report/",
    "sync/transport/frame.py",
    "sync/allreduce/header.py",
)


@dataclass(frozen=True, order=True)
class Size:
    """So many of a kind, at a place: `sync/round.py: Round`."""

    place: str
    kind: str
    count: int

    def __str__(self) -> str:
        return f"{self.place}: {self.count} {self.kind}, of {LIMITS[self.kind]} at most"


def too_large(package: Path = PACKAGE) -> list[Size]:
    """Whatever is above a limit, in order."""
    found = []
    for file in sorted(package.rglob("*.py")):
        name = str(file.relative_to(package))
        found += _sizes(name, ast.parse(file.read_text(encoding="utf-8")))
    return sorted(size for size in found if size.count > LIMITS[size.kind] and size.place not in EXCEPTIONS)


def _sizes(name: str, tree: ast.Module) -> Iterator[Size]:
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    yield Size(name, "imports of the project's modules", sum(one.startswith("testbed") for one in modules))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield Size(f"{name}: {node.name}", "lines of a function", lines)
        elif isinstance(node, ast.ClassDef):
            yield from _class_sizes(f"{name}: {node.name}", node, values=name.startswith(VALUES))


def _class_sizes(place: str, node: ast.ClassDef, *, values: bool) -> Iterator[Size]:
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    yield Size(place, "methods of a class", len(methods))
    if values:
        return
    own = {
        target.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Assign | ast.AnnAssign)
        for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    }
    declared = {
        one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    yield Size(place, "attributes of a class", len(own | declared))
    for method in methods:
        if method.name == "__init__":
            count = len(method.args.args) + len(method.args.kwonlyargs) - 1
            yield Size(place, "arguments of a constructor", count)


def doubled(package: Path = PACKAGE) -> dict[str, list[str]]:
    """Names that several classes have, each with their modules: one name is to mean one thing."""
    found: dict[str, list[str]] = {}
    for file in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(str(file.relative_to(package)))
    return {name: modules for name, modules in sorted(found.items()) if len(modules) > 1}


def listed() -> tuple[dict[str, int], dict[str, list[str]]]:
    """The sizes and the doubled names that are known."""
    larger, names = (json.loads((ROOT / "tests" / f"{name}.json").read_text()) for name in ("larger", "doubled"))
    return larger, names


def write() -> None:
    """Make what is found the known."""
    sizes = {f"{size.place}: {size.kind}": size.count for size in too_large()}
    for name, value in (("larger", sizes), ("doubled", doubled())):
        (ROOT / "tests" / f"{name}.json").write_text(json.dumps(value, indent=1) + "\n")


def main() -> int:
    """List what is too large, or write it down; the exit code says whether anything is that was not known."""
    parser = argparse.ArgumentParser(prog="python -m tests.sizes", description=__doc__)
    parser.add_argument("--write", action="store_true", help="make what is found the known, once something shrank")
    if parser.parse_args().write:
        write()
    larger, names = listed()
    news = [size for size in too_large() if larger.get(f"{size.place}: {size.kind}", 0) < size.count]
    others = [f"{name}: a class in {', '.join(its)}" for name, its in doubled().items() if its != names.get(name)]
    for one in (*news, *others):
        print(one)
    print(f"{len(larger)} sizes and {len(names)} names are above what they should be as yet")
    return int(bool(news or others))


if __name__ == "__main__":
    sys.exit(main())
