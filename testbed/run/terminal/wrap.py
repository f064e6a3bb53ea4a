"""Lines of words for a terminal that is narrower than they are: broken between phrases, not within one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

#: What ends a phrase, with the space after it, or what begins one in brackets; a break elsewhere tears apart what is
#: read as one.
PHRASE_END = re.compile(r"[,;:.)] +|  +| +(?=\()")
WORD_END = re.compile(r" +")

#: A line that goes on is set in by so many columns more than it began with.
HANGING = 2


def fitted(text: Text, console: Console, hanging: int = HANGING) -> Text:
    """The text as this console shows it: in a terminal in lines that fit it, and elsewhere as it is, since a file or a
    pipe has no width."""
    return folded(text, console.width, hanging) if console.is_terminal else text


def folded(text: Text, width: int, hanging: int = HANGING) -> Text:
    """The text in lines of at most `width` columns, each as long as phrases allow; one that is longer than a line is
    broken between words, and a word that is longer than that is left whole."""
    given = text.split("\n", allow_blank=True)
    return Text("\n").join(line for each in given for line in _lines(each, width, hanging))


def _lines(line: Text, width: int, hanging: int) -> Iterator[Text]:
    indent = len(line.plain) - len(line.plain.lstrip(" "))
    room = width
    while line.cell_len > room:
        end = _break(line.plain, indent if room == width else 0, room)
        if end is None:
            break
        first, line = line.divide([end])
        first.rstrip()
        yield first if room == width else _set_in(first, indent + hanging)
        line = line[len(line.plain) - len(line.plain.lstrip(" ")) :]
        room = width - indent - hanging
    yield line if room == width else _set_in(line, indent + hanging)


def _break(plain: str, begin: int, room: int) -> int | None:
    """Where the line ends: after the last phrase that fits, or else the last word, or else the first; None where there
    is nothing after it."""
    for kind in (PHRASE_END, WORD_END):
        ends = [found.end() for found in kind.finditer(plain, begin) if _fits(plain[: found.end()], room)]
        if ends:
            return ends[-1]
    first = WORD_END.search(plain, begin)
    return first.end() if first and first.end() < len(plain) else None


def _fits(plain: str, room: int) -> bool:
    return Text(plain.rstrip(" ")).cell_len <= room


def _set_in(line: Text, columns: int) -> Text:
    return Text(" " * columns) + line
