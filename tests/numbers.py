"""List the numbers that the source's prose has lost: `python -m tests.numbers BEFORE [AFTER]`.

A measured reason is easily dropped when its sentence is written again. A number is lost if a comment or docstring had
it with its unit, or with the word after it, at the commit BEFORE, and no source, page or result has it so at AFTER.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.words import COMMENT, DOCUMENTED, ROOT

SOURCE = ("benchmarks", "containers", "testbed")
SUFFIX = re.compile(r"\.(c|css|Dockerfile|h|html|j2|js|json|md|py|sh|template|yaml)")

#: A comment in a language other than Python.
FOREIGN = re.compile(r"(?sm)/\*.*?\*/|<!--.*?-->|(?:(?:^|(?<=\s))(?:#|//) [^\n]*\n?[ \t]*)+")
LINE_BREAK = re.compile(r"\n\s*(?:#:?|//|\*)?\s*")
SENTENCE_END = re.compile(r"(?<=[.;!?])\s+|\n\s*\n")
#: A number, and after an optional range ("7 to 21 ms") its unit or the next word.
RANGE = r"(?: ?(?:to|or|and|[-–/,]) ?\d[\d.,]*)*"
NUMBER = re.compile(rf"(?<![\w.])(\d[\d,]*(?:\.\d+)?(?:e-?\d+)?)(?!\.?\d)(?={RANGE}[ -]?(%|×|µ?[A-Za-z]+(?:/\w+)?|))")
NO_UNIT = re.compile(
    r"an?|and|are|as|at|by|does|for|from|has|if|in|is|it|not|o[fnr]|off|once|over|than|that|to|was|when"
)
#: A constant whose name ends with its unit: `LIMIT_MS = 240`, `"wait_s": 3`.
CONSTANT = re.compile(r"_([A-Za-z]+)\b[^=:\n]{0,30}[=:] *(\d+(?:\.\d+)?)")


def numbers(text: str) -> Iterator[tuple[str, str]]:
    """Yield each number of a text with its unit or the word after it, in the singular; the unit may be empty."""
    for number, word in NUMBER.findall(text):
        yield number.replace(",", ""), "" if NO_UNIT.fullmatch(word) else re.sub(r"(?<=\w\w\w)s$", "", word.lower())


def kept_in(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield the numbers of a file with their units, and those of three significant digits also with the unit `*`."""
    text = re.sub(r"(?<=\d)_(?=\d)", "", text)
    yield from ((number, unit.lower()) for unit, number in CONSTANT.findall(text))
    joined = [LINE_BREAK.sub(" ", each) for each in ([text] if name.endswith(".md") else prose(name, text))]
    for number, unit in (number for each in (text, *joined) for number in numbers(each)):
        yield from ((number, unit), (number, "*" if len(number.replace(".", "").strip("0")) > 2 else unit))


def prose(name: str, text: str) -> Iterator[str]:
    """Yield the docstrings and comments of a file; consecutive lines of comment are joined."""
    if not name.endswith(".py"):
        yield from FOREIGN.findall(text)
        return
    yield from (ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, DOCUMENTED))
    lines = [found[0].strip(" #:") if found else "" for found in map(COMMENT.search, text.splitlines())]
    yield from filter(None, re.split(r"\n{2,}", "\n".join(lines).strip()))


def lost(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield each lost number's file, the number with its unit, and its sentence. Both trees give texts by file name."""
    kept = {number for name, text in after.items() for number in kept_in(name, text)}
    for name, text in before.items():
        for sentence in (part for each in prose(name, text) for part in SENTENCE_END.split(each)):
            for number, unit in dict.fromkeys(numbers(LINE_BREAK.sub(" ", sentence))):
                if name.startswith(SOURCE) and kept.isdisjoint({(number, unit), (number, "*")}):
                    yield name, f"{number} {unit}".strip(), " ".join(sentence.split())


def tree(root: Path, commit: str = "") -> dict[str, str]:
    """Return the texts of the tree at `root`, or of a commit, by file name, without vendored libraries."""
    if commit:
        with tempfile.TemporaryDirectory() as copy:
            packed = subprocess.run(["git", "archive", commit], cwd=root, capture_output=True, check=True).stdout
            subprocess.run(["tar", "-x", "-C", copy], input=packed, check=True)
            return tree(Path(copy))
    files = [*(file for room in (*SOURCE, "docs") for file in sorted((root / room).rglob("*"))), *root.glob("*.md")]
    read = [file for file in files if SUFFIX.fullmatch(file.suffix) and "vendor" not in file.parts]
    return {str(file.relative_to(root)): file.read_text(encoding="utf-8") for file in read}


def main() -> int:
    """Print the lost numbers, one a line."""
    found = [*lost(tree(ROOT, sys.argv[1]), tree(ROOT, *sys.argv[2:3]))]
    print(*(f"{name}: {number}: {sentence}" for name, number, sentence in found), sep="\n")
    print(f"{len(found)} numbers in {len({name for name, _, _ in found})} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
