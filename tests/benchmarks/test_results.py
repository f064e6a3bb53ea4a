"""The tables of measurements in the documentation are those in benchmarks/results."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from benchmarks.results import PAGES, RESULTS, ROOT, TABLE, Entry, entries, main, newest, rewritten

pytestmark = pytest.mark.pure

FILES = sorted(RESULTS.glob("*.json"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_marked_table_is_the_newest_entry_of_its_file(page: Path) -> None:
    assert rewritten(page.read_text()) == page.read_text(), "Run: python -m benchmarks.results"


def test_the_page_of_benchmarks_has_no_other_table() -> None:
    text = TABLE.sub("", (ROOT / "docs" / "benchmarks.md").read_text())
    assert [line for line in text.split("\n") if line.startswith("|")] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_entry_names_a_command_of_its_program(file: Path) -> None:
    options = (ROOT / "benchmarks" / "support" / "options.py").read_text()
    for entry in entries(file):
        python, flag, module, *words = shlex.split(entry.command)
        assert (python, flag, module.rpartition(".")[2]) == ("python", "-m", file.stem)
        program = ROOT / module.replace(".", "/")
        source = (program / "__main__.py" if program.is_dir() else program.with_suffix(".py")).read_text()
        asked = {word.removeprefix("--") for word in words if word.startswith("--")}
        assert {option for option in asked if option not in source + options} == set()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_row_has_a_cell_for_each_column(file: Path) -> None:
    for entry in entries(file):
        assert {len(row) for row in entry.rows} == {len(entry.columns)}
        assert not any("|" in cell for row in (entry.columns, *entry.rows) for cell in row)


def test_the_newest_entry_of_a_table_is_the_last() -> None:
    last = [entry for entry in entries(RESULTS / "replanning.json") if entry.table == "rounds"][-1]
    assert newest("replanning")["rounds"] == last


def test_a_table_names_its_command_and_what_it_was_measured_on() -> None:
    entry = Entry(
        "t", "abc", "2026-11-27", "python -m benchmarks.x", ("a", "b"), (("1", "2"),), kernel="6.1", note="N."
    )
    assert entry.markdown() == (
        "\n| a | b |\n|---|---|\n| 1 | 2 |\n\n`python -m benchmarks.x`, kernel 6.1, 2026-11-27, commit abc. N.\n\n"
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_name_prints_the_newest_entry_of_each_table_of_its_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["results", file.stem])
    main()
    printed = "".join(capsys.readouterr().out.split())
    for entry in {entry.table: entry for entry in entries(file)}.values():
        assert f"{file.stem}.{entry.table}" in printed
        assert "".join(entry.command.split()) in printed
        assert all("".join(column.split()) in printed for column in entry.rows[-1][:1])
