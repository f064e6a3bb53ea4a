"""How large classes, functions and modules may be, and that a name means one thing: `python -m tests.sizes`.

It lists what is larger, and names that several classes have. What is larger is harder to read than it has to be.
"""

from __future__ import annotations

import ast
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
    "api/models.py",
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


def main() -> int:
    """List what is too large, and what has a name that means several things; the exit code says whether anything is."""
    found = [*too_large(), *(f"{name}: a class in {', '.join(modules)}" for name, modules in doubled().items())]
    for one in found:
        print(one)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
