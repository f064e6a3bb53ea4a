"""Classes and modules are named in the field's terms: none has a word of our own where the field has one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parents[1]

#: The words that are not said, and what is said instead of them.
INSTEAD: Mapping[str, tuple[str, ...]] = {
    "generation, membership change": ("era",),
    "abort, reconfigure, recovery": ("halt", "resume", "mend"),
    "message, message queue, message codec": ("letter", "post"),
    "gossip, neighbour, graph": ("circle",),
    "node configuration, assignment": ("place", "placement"),
    "participant, rendezvous": ("party", "meeting", "meet"),
    "prepare, promise, commit, abort": ("ask", "promised", "turn", "release", "course", "regraph"),
    "all-reduce engine": ("exchange",),
    "role in a tree": ("duty",),
    "channel": ("lane",),
    "transport settings": ("way",),
    "send pacing": ("ahead",),
    "adaptive timeout": ("patience",),
    "asynchronous executor": ("later",),
    "error-feedback residual, anchor": ("owed", "hold", "shown"),
    "round log, decision log, membership event, plan history, violation": (
        "book",
        "ledger",
        "passage",
        "succession",
        "breach",
    ),
}

#: Post-local SGD is an algorithm's published name (Lin et al. 2020).
PUBLISHED = ("post_local", "PostLocal")


def parts(name: str) -> list[str]:
    """The words of a name, in lower case: `RoundBook`, `round_book`."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def forms(word: str) -> tuple[str, ...]:
    """A word and its plural."""
    return word, f"{word[:-1]}ies" if word.endswith("y") and word != "way" else f"{word}s"


#: A word that is not said: what is said instead.
BETTER = {form: said for said, words in INSTEAD.items() for word in words for form in forms(word)}


def names(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Each module, folder and class, with where it is."""
    for file in sorted(path for room in ("testbed", "benchmarks") for path in (root / room).rglob("*.py")):
        place = str(file.relative_to(root))
        yield place, file.parent.name if file.name == "__init__.py" else file.stem
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield f"{place}: {node.name}", node.name


def private(root: Path = ROOT) -> dict[str, str]:
    """The names with a word that is not said, each with what is said instead."""
    return {
        place: better
        for place, name in names(root)
        if not name.startswith(PUBLISHED)
        for better in [next((BETTER[word] for word in parts(name) if word in BETTER), None)]
        if better is not None
    }


def test_no_class_or_module_is_named_by_a_word_of_our_own() -> None:
    assert not {place: f"say {said}" for place, said in private().items()}


def test_a_word_is_found_in_any_part_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "testbed" / "duties").mkdir(parents=True)
    (tmp_path / "testbed" / "duties" / "__init__.py").write_text("class _RoundBook: ...\nclass Booking: ...\n")
    (tmp_path / "testbed" / "post_local.py").write_text("class PostLocalSgd: ...\nclass HTTPPost: ...\n")
    assert private(tmp_path) == {
        "testbed/duties/__init__.py": "role in a tree",
        "testbed/duties/__init__.py: _RoundBook": "round log, decision log, membership event, plan history, violation",
        "testbed/post_local.py: HTTPPost": "message, message queue, message codec",
    }
