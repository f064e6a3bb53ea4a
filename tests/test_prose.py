"""Tests match tokens of an error's text, never its sentences, so that texts may be rewritten."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

TESTS = Path(__file__).parent

#: Three plain words in a row. A file, a field, a figure or an option between words ends a row.
SENTENCE = re.compile(r"(?<![\w`./-])[A-Za-z]?[a-z]+ [a-z]+ [a-z]+(?![\w.-])")

#: The text of an error, or of the log.
ERROR = re.compile(r"str\(|caplog\.text")


def sentences(source: str) -> Iterator[str]:
    """Yield each text of three words in a row that `pytest.raises(match=…)` or an `in str(…)` asks an error for."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            asked = [keyword.value for keyword in node.keywords if keyword.arg == "match"]
        elif isinstance(node, ast.Compare):
            asked = [node.left]
        else:
            continue
        found = [
            part
            for value in asked
            for part in ast.walk(value)
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and SENTENCE.search(part.value)
        ]
        if found and (isinstance(node, ast.Call) or ERROR.match(ast.unparse(node.comparators[0]))):
            yield from (f"line {part.lineno}: {part.value}" for part in found)


def test_no_test_asks_an_error_for_a_sentence() -> None:
    files = (file for file in sorted(TESTS.rglob("*.py")) if "vendor" not in file.parts)
    found = {str(file.relative_to(TESTS)): [*sentences(file.read_text(encoding="utf-8"))] for file in files}
    assert {file: asked for file, asked in found.items() if asked} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('pytest.raises(PlanError, match=f"{name}: the tree has a cycle")', True),
        ('assert f"{name} is not connected" in str(error.value)', True),
        ('assert "is not connected" in caplog.text', True),
        ('pytest.raises(PlanError, match="topology.yaml: links.0.rate: ")', False),
        ('pytest.raises(LockError, match="Run: make update")', False),
        ('assert "is not connected" in names', False),
    ],
)
def test_a_sentence_is_three_plain_words(source: str, found: bool) -> None:
    assert bool([*sentences(source)]) is found
