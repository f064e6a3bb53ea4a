"""Rewrite the tables of measurements in the documentation from the files in benchmarks/results, or print a file's.

    python -m benchmarks.results
    python -m benchmarks.results NAME

benchmarks/results/NAME.json holds the figures of `benchmarks.NAME`, or of a program of tests/: a list of entries, the
oldest first. To record a measurement, append an entry and run this command without NAME. With NAME it prints the newest
entry of each table in NAME.json. A page of docs/, or README.md, shows the newest entry of a table between two comments:

    <!-- table: hop.protocols -->
    <!-- end of table -->
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("results")
PAGES = [ROOT / "README.md", *sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "experiments").rglob("README.md")])]

#: The columns of text where the output is no terminal: no table of the files is wider.
FILE_WIDTH = 200

#: A table in a page: the comment with its file and name, what is shown, and the comment that ends it.
TABLE = re.compile(r"(<!-- table: (?P<file>\w+)\.(?P<name>[\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of figures, as they were measured at one time."""

    table: str
    #: The commit that was measured, or None where it was not recorded.
    commit: str | None
    #: The day on which the figures entered the documentation.
    date: str | None
    command: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    #: What the figures were measured on.
    machine: str | None = None
    backend: str | None = None
    kernel: str | None = None
    #: What the reader of the table must know, in whole sentences.
    note: str = ""
    #: Conditions and observations that the page does not show.
    details: str = ""

    def markdown(self) -> str:
        """Return the table, and below it the command, the machine, the date and the note."""
        head, *rows = (f"| {' | '.join(row)} |" for row in (self.columns, *self.rows))
        table = "\n".join((head, "|---" * len(self.columns) + "|", *rows))
        return f"\n{table}\n\n{self.origin}\n\n"

    @property
    def origin(self) -> str:
        """The command, the machine, the date and the note, as one paragraph of Markdown."""
        kernel = self.kernel and f"kernel {self.kernel}"
        commit = self.commit and f"commit {self.commit}"
        backend = self.backend and f"`{self.backend}`"
        origin = ", ".join(filter(None, (f"`{self.command}`", self.machine, backend, kernel, self.date, commit)))
        return f"{origin}. {self.note}".strip()


def entries(file: Path) -> list[Entry]:
    """Return the entries of a file of results, the oldest first."""
    return msgspec.json.decode(file.read_bytes(), type=list[Entry])


def newest(file: str) -> dict[str, Entry]:
    """Return the last entry of each table in a file of results, by the table's name."""
    return {entry.table: entry for entry in entries(RESULTS / f"{file}.json")}


def rewritten(text: str) -> str:
    """Return a page's text with each of its marked tables as the files have it."""
    return TABLE.sub(lambda found: f"{found[1]}{newest(found['file'])[found['name']].markdown()}{found[4]}", text)


def printable(name: str) -> Iterator[Table]:
    """Yield the newest entry of each table in a file of results, for the terminal.

    Args:
        name: The file's name without `.json`.
    """
    for entry in newest(name).values():
        table = Table(title=f"{name}.{entry.table}", title_justify="left", caption=entry.origin, caption_justify="left")
        for number, column in enumerate(entry.columns):
            table.add_column(column, justify="right" if number else "left", overflow="fold")
        for row in entry.rows:
            table.add_row(*row)
        yield table


def main() -> None:
    """Rewrite the pages, or print the tables of one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sorted(file.stem for file in RESULTS.glob("*.json"))
    parser.add_argument(
        "name", nargs="?", metavar="NAME", choices=known, help=f"print the tables of {', '.join(known)}"
    )
    name = parser.parse_args().name
    if name is None:
        for page in PAGES:
            page.write_text(rewritten(page.read_text()))
        return
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    for table in printable(name):
        console.print(table, "")


if __name__ == "__main__":
    main()
