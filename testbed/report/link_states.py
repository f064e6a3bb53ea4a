"""The states of links over time, thinned to what a person can follow.

A run of two hours has two million states, which take half a second to decode. Of each piece of the file, the last state
of each link is kept, and each state that takes a link up, takes it down or removes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from testbed.schema import decode_lines

#: Name -> one value per time of `at_s` (seconds since training began); `there` is False once the link was removed.
Columns = dict[str, list[Any]]


class StateLine(msgspec.Struct, gc=False):
    """A line of `links.jsonl`: the state of a link from a moment on."""

    at_s: float
    link: str
    rate_bps: float | None = None
    delay_s: float | None = 0.0
    loss: float | None = 0.0
    up: bool = True
    removed: bool = False


def link_columns(file: Path, began: float, pieces: int) -> dict[str, Columns]:
    """Return the states of each link in `links.jsonl`, thinned by dividing the file into this many pieces.

    `began` is the start of training (Unix seconds). A missing file has no links.
    """
    kept: dict[str, list[StateLine]] = {}
    decoder = msgspec.json.Decoder(StateLine)
    for piece in _pieces(file, pieces):
        lines = decode_lines(decoder, piece)
        if b"false" in piece or b"removed" in piece:
            _keep_changes(kept, lines)
        else:
            for name, last in {line.link: line for line in lines}.items():
                kept.setdefault(name, []).append(last)
    return {name: _columns(lines, began) for name, lines in kept.items()}


def _pieces(file: Path, count: int) -> Iterator[bytes]:
    """Yield `count` pieces of about the same size, in whole lines, without a last line that was cut short."""
    if not file.exists():
        return
    size = file.stat().st_size // count + 1
    with file.open("rb") as lines:
        while piece := lines.read(size):
            yield (piece + lines.readline()).rpartition(b"\n")[0]


def _keep_changes(kept: dict[str, list[StateLine]], lines: Iterable[StateLine]) -> None:
    """Keep the last state of each stretch in which a link neither comes up, goes down nor is removed."""
    of_piece: dict[str, list[StateLine]] = {}
    for line in lines:
        its = of_piece.setdefault(line.link, [])
        if its and (its[-1].up, its[-1].removed) == (line.up, line.removed):
            its[-1] = line
        else:
            its.append(line)
    for name, its in of_piece.items():
        kept.setdefault(name, []).extend(its)


def _columns(lines: Sequence[StateLine], began: float) -> Columns:
    return {
        "at_s": [round(line.at_s - began, 3) for line in lines],
        "rate_bps": [None if line.rate_bps is None else round(line.rate_bps) for line in lines],
        "delay_s": [line.delay_s for line in lines],
        "loss": [line.loss for line in lines],
        "up": [line.up for line in lines],
        "there": [not line.removed for line in lines],
    }
