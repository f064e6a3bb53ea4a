"""Draw names and messages, each with the sentence that a reader sees first: `python -m tests.drawn SEED [COUNT]`.

A reader who has not seen the code says what each does, and then compares with the code at the place that `--where`
prints. Where the guess is wrong, the sentence is written again. Every room gives about equally many.
"""

from __future__ import annotations

import ast
import random
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.words import ROOT, first_line, is_said, text_of

#: The room of the modules that belong to none.
ROOMLESS = "testbed"

#: A message of fewer words is a label.
MESSAGE_WORDS = 4


class Drawn(NamedTuple):
    """A function, a class or a message."""

    room: str
    name: str
    sentence: str
    where: str


def described(file: Path) -> list[Drawn]:
    """Return the functions and classes of a module that have a docstring, and its messages."""
    path, inside = file.relative_to(ROOT), file.relative_to(ROOT / "testbed")
    room = inside.parts[0] if len(inside.parts) > 1 else ROOMLESS
    found: list[Drawn] = []

    def visit(node: ast.AST, within: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Name | ast.Constant | ast.expr_context):
                continue  # half of the nodes, with nothing inside
            name = within
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{within}.{child.name}".lstrip(".")
                if text := ast.get_docstring(child):
                    arguments = "" if isinstance(child, ast.ClassDef) else f"({ast.unparse(child.args)})"
                    found.append(Drawn(room, name + arguments, first_line(text), f"{path}:{child.lineno}"))
            elif isinstance(child, ast.Call) and is_said(child):
                for text in map(text_of, child.args[:2]):
                    if len(text.split()) >= MESSAGE_WORDS:
                        sentence = " / ".join(map(str.strip, text.splitlines()))
                        found.append(Drawn(room, "message", sentence, f"{path}:{child.lineno}"))
            visit(child, name)

    visit(ast.parse(file.read_text(encoding="utf-8")), "")
    return found


@cache
def every_one() -> tuple[Drawn, ...]:
    """Return all that can be drawn, by file and line."""
    return tuple(each for file in sorted((ROOT / "testbed").rglob("*.py")) for each in described(file))


def draw(seed: int, count: int) -> list[Drawn]:
    """Draw from a room drawn before, without putting back."""
    rooms: dict[str, list[Drawn]] = {}
    for each in every_one():
        rooms.setdefault(each.room, []).append(each)
    chance = random.Random(seed)
    drawn: list[Drawn] = []
    while len(drawn) < count and rooms:
        room = chance.choice(sorted(rooms))
        drawn.append(rooms[room].pop(chance.randrange(len(rooms[room]))))
        if not rooms[room]:
            del rooms[room]
    return drawn


def main() -> int:
    """Print what is drawn, or with `--where` the places in the same order. Returns 2 if the seed is no number."""
    words = [word for word in sys.argv[1:] if word != "--where"]
    if not words or not all(word.isdecimal() for word in words):
        print("python -m tests.drawn SEED [COUNT] [--where]", file=sys.stderr)
        return 2
    seed, count = int(words[0]), int(words[1]) if len(words) > 1 else 200
    for number, each in enumerate(draw(seed, count), start=1):
        print(f"{number}. {each.where if '--where' in sys.argv else f'{each.room} | {each.name} | {each.sentence}'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
