"""Find sentences that a reader has to read twice: `python -m tests.words [FILE…]`.

It knows the openers that no docstring, error or commit subject begins with, and a few idioms that are not the field's
words. A reader finds the others: "How sentences are written" in CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: Commits after this one are read; earlier subjects stay as they are.
FIRST_COMMIT = "8ca4f78f"

#: The most characters of a commit's subject.
SUBJECT_LENGTH = 72

#: A sentence that begins so has its subject at the end, or none.
OPENER = re.compile(r"(What|Who|Whom|Whether|Of|That of|Those|Such|It|So|In place of)\b")

#: An error or a log line may begin with "It" and "So" no more than a docstring, and with a question not at all.
SAID_OPENER = re.compile(r"(what|who|whom|whether|of|that of|those|such|in place of)\b", re.IGNORECASE)

#: Each idiom, and what is written instead.
IDIOMS = {
    r"(?<!to )(?<!against )\bwhom\b": "name the member, the worker or the peer",
    r"\banew\b": "again",
    r"\bso many\b": "N, or the number's name",
    r"\b(is|are) to come\b": "later, next",
    r"\bhas it that\b": "says",
    r"(?<!there )\b(is|are) none\b(?! of)": "there is no …",
    r"\b[Ww]ho (comes|goes|waits|dies|asks|leaves|wants)\b": "a member that comes, a thread that waits, …",
}
IDIOM = {re.compile(pattern): instead for pattern, instead in IDIOMS.items()}
ANY_IDIOM = re.compile("|".join(IDIOMS))

#: The syntax nodes that have docstrings.
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

#: A comment, or what looks like one in a text.
COMMENT = re.compile(r"(?:^|\s)#:? .*")

#: The calls whose text a person reads: errors, logs, the terminal.
SAID_BY = re.compile(r"(log|logger|logging)\.\w+|fail|typer\.echo|print|.*(Error|Problem|Failed|Refused|Contradiction)")


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence to write again."""

    line: int
    rule: str
    text: str
    instead: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.rule}: {self.text!r}; write {self.instead}"


def of_docstring(text: str, line: int = 1) -> Iterator[Finding]:
    """Yield the findings in a docstring."""
    if found := OPENER.match(text):
        instead = "a verb or a noun phrase: 'Return …', 'The plan in force.'"
        yield Finding(line, f"begins with {found[0]}", first_line(text), instead)
    yield from of_prose(text, line)


def of_message(text: str, line: int = 1) -> Iterator[Finding]:
    """Yield the findings in an error or a log line."""
    if found := SAID_OPENER.match(text):
        yield Finding(line, f"begins with {found[0]}", first_line(text), "what happened, where, and what to do")
    yield from of_prose(text, line)


def of_prose(text: str, line: int = 1) -> Iterator[Finding]:
    """Yield the idioms in a text, outside of code in backquotes."""
    if not ANY_IDIOM.search(text):
        return
    for number, each in enumerate(text.splitlines(), start=line):
        words = re.sub(r"`[^`]*`", "``", each)
        for idiom, instead in IDIOM.items():
            if found := idiom.search(words):
                yield Finding(number, f"says {found[0]}", each.strip(), instead)


def of_subject(subject: str) -> Iterator[Finding]:
    """Yield the findings in a commit's subject."""
    if len(subject) > SUBJECT_LENGTH:
        yield Finding(1, f"has {len(subject)} characters", subject, f"{SUBJECT_LENGTH} at most, the reason in the body")
    yield from of_docstring(subject)


def of_python(source: str) -> Iterator[Finding]:
    """Yield the findings in the docstrings, comments and messages of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED):
            if (text := ast.get_docstring(node)) is not None:
                yield from of_docstring(text, node.body[0].lineno)
        elif isinstance(node, ast.Call) and is_said(node):
            for text in filter(None, map(text_of, node.args[:2])):
                yield from of_message(text, node.lineno)
    for number, line in enumerate(source.splitlines(), start=1):
        if comment := COMMENT.search(line):
            yield from of_prose(comment[0], number)


def of_markdown(text: str) -> Iterator[Finding]:
    """Yield the idioms of a page, outside of its blocks of code."""
    code = False
    for number, line in enumerate(text.splitlines(), start=1):
        code ^= line.startswith("```")
        if not code:
            yield from of_prose(line, number)


def of_file(file: Path) -> list[Finding]:
    """Return the findings in a file."""
    text = file.read_text(encoding="utf-8")
    return list(of_python(text) if file.suffix == ".py" else of_markdown(text))


def is_said(call: ast.Call) -> bool:
    """Return whether a person reads the text that is passed to this call."""
    function, name = call.func, ""
    if isinstance(function, ast.Attribute):  # of a chain the last part decides; to unparse all of them takes seconds
        name = f"{function.value.id if isinstance(function.value, ast.Name) else ''}.{function.attr}"
    elif isinstance(function, ast.Name):
        name = function.id
    return SAID_BY.fullmatch(name) is not None


def text_of(node: ast.expr) -> str:
    """Return a literal's text, with … in place of formatted values; empty if the expression is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return ""


def first_line(text: str) -> str:
    """Return the first line of a text."""
    return text.splitlines()[0]


def files() -> list[Path]:
    """Return the files to read: the product, its benchmarks, its pages."""
    python = [path for room in ("testbed", "benchmarks") for path in (ROOT / room).rglob("*.py")]
    return sorted([*python, *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def subjects() -> list[str]:
    """Return the subjects of the commits since FIRST_COMMIT; none if that is not in the history."""
    done = subprocess.run(
        ["git", "log", "--no-merges", "--format=%s", f"{FIRST_COMMIT}..HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    return done.stdout.splitlines()


def main() -> int:
    """Print the findings. Returns 1 if there are any."""
    wanted = [Path(name).resolve() for name in sys.argv[1:]] or files()
    found = [(file.relative_to(ROOT), finding) for file in wanted for finding in of_file(file)]
    for file, finding in found:
        print(f"{file}: {finding}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
