"""Wraps lines for a narrow terminal: between phrases where possible, not within one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

#: The end of a phrase with the space after it, or the beginning of a parenthesis.
PHRASE_END = re.compile(r"[,;:.)] +|  +| +(?=\()")
WORD_END = re.compile(r" +")

#: The columns by which the continuation of a line is indented more than its beginning.
HANGING = 2


def wrapped(text: Text, console: Console, hanging: int = HANGING) -> Text:
    """Return the text wrapped to the console's width; unchanged where the output is a file or a pipe."""
    return folded(text, console.width, hanging) if console.is_terminal else text


def folded(text: Text, width: int, hanging: int = HANGING) -> Text:
    """Return the text in lines of at most `width` columns, whose continuations are indented by `hanging` columns.

    Lines break between phrases; a phrase that is longer than a line breaks between words; a longer word stays whole.
    """
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
    """Return where to break a line: after the last phrase that fits, else the last word, else the first word.

    None if nothing follows the break.
    """
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
