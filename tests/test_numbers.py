"""A number that the prose has lost is found, with its unit; one that stands elsewhere is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.numbers import lost, numbers, prose, tree

pytestmark = pytest.mark.pure

NUMBERS = (
    ("a fork costs 3.2 ms, a line 12 µs", [("3.2", "ms"), ("12", "µs")]),
    ("7 to 21 ms late", [("7", "ms"), ("21", "ms")]),
    ("of 465,048 characters 10% and 4 Mbit/s", [("465048", "character"), ("10", "%"), ("4", "mbit/s")]),
    ("32 members, as each of 4 is", [("32", "member"), ("4", "")]),
    ("below 6.1e-5, as in 2.13.0 and w0", [("6.1e-5", "")]),
)

SOURCE = '''"""Holds 26 links at 40 Mbit/s."""

LIMIT = 3  # seconds; a start took
# 14 s here. Each has 216 MB.
x = "of 99 nodes"
'''

KEPT = {
    "testbed/a.py": "# it took 14 s",
    "benchmarks/b.py": "LIMIT_S: Final = 14.0\nWAIT_S = 14",
    "docs/c.md": "wait 14 s",
    "benchmarks/results/d.json": '{"start_s": 14, "nodes": 3}',
}


@pytest.mark.parametrize(("text", "expected"), NUMBERS)
def test_a_number_is_read_with_its_unit_or_the_next_word(text: str, expected: list[tuple[str, str]]) -> None:
    assert [*numbers(text)] == expected


def test_comments_and_docstrings_are_read_and_code_is_not() -> None:
    assert [*prose("a.py", SOURCE)] == [
        "Holds 26 links at 40 Mbit/s.",
        "seconds; a start took\n14 s here. Each has 216 MB.",
    ]
    assert [*prose("a.c", "/* of 3\n * s */ int x = 4; // 5 ms\n")] == ["/* of 3\n * s */", "// 5 ms\n"]
    assert [*prose("a.sh", "# 3 s\n# more\nx=4 # 5 ms\n")] == ["# 3 s\n# more\n", "# 5 ms\n"]


def test_a_lost_number_is_named_with_its_file_and_sentence() -> None:
    after = {"testbed/b.py": '"""Hold 26 links."""\nSIZE_MB = 216'}
    assert [*lost({"testbed/a.py": SOURCE}, after)] == [
        ("testbed/a.py", "40 mbit/s", "Holds 26 links at 40 Mbit/s."),
        ("testbed/a.py", "14 s", "a start took 14 s here."),
    ]


@pytest.mark.parametrize("name", KEPT)
def test_a_number_with_its_unit_is_kept_by_any_file(name: str) -> None:
    assert [*lost({"testbed/a.py": "# it took 14 s"}, {name: KEPT[name]})] == []


@pytest.mark.parametrize(
    ("name", "text", "kept"),
    [
        ("testbed/b.py", "# it took 14\n# s", True),
        ("testbed/b.py", '"""It took 14\ns."""', True),
        ("testbed/b.c", "/* it took 14\n * s */", True),
        ("docs/c.md", "It took 14\ns.", True),
        ("testbed/b.py", "x = 14\ns = 3", False),
    ],
)
def test_a_number_and_its_unit_may_stand_on_two_lines_of_prose(name: str, text: str, kept: bool) -> None:
    assert ([*lost({"testbed/a.py": "# it took 14 s"}, {name: text})] == []) == kept


def test_a_number_of_three_digits_is_kept_without_its_unit_and_a_shorter_one_is_not() -> None:
    before = {"testbed/a.py": "# port 4789 here, 14 s"}
    assert [number for _, number, _ in lost(before, {"testbed/b.py": "PORT = 4789; LIMIT = 14"})] == ["14 s"]


def test_the_pages_are_read_for_kept_numbers_and_vendored_libraries_for_none(tmp_path: Path) -> None:
    for name in ("testbed/a.py", "testbed/vendor/b.js", "docs/c.md", "docs/d.png", "README.md", "tests/e.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [*tree(tmp_path)] == ["testbed/a.py", "docs/c.md", "README.md"]
    assert [*lost({"docs/c.md": "# 14 s"}, {})] == []
