"""What programs say: kept in a file each, and passed on line by line."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

#: A line that goes on for longer is passed on in pieces: progress bars that end no line, binary data.
LONGEST_LINE = 1 << 16

#: What is remembered of each for the moment in which it fails: a traceback of PyTorch's has some forty lines.
LAST_LINES = 40

#: Told of a line: the program's name, and what it said.
Told = Callable[[str, str], None]


class Lines:
    """Bytes as they come, cut into lines. What a carriage return writes over is left out."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, piece: bytes) -> Iterator[bytes]:
        """The lines that this one ends."""
        *whole, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            whole.append(self._rest)
            self._rest = b""
        yield from map(_last_version, whole)

    def end(self) -> Iterator[bytes]:
        """What no line end followed."""
        if self._rest:
            yield _last_version(self._rest)
        self._rest = b""


def _last_version(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class Output:
    """What one program says: goes to its `log` as it is, and line by line to `tell`."""

    def __init__(self, name: str, log: Path, tell: Told, pieces: Iterable[bytes]) -> None:
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self._name = name
        self._log = log
        self._tell = tell
        self._pieces = pieces
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"output of {name}", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for its end, which comes once all that the program started has ended too."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def check(self) -> None:
        """Raise what ended the reading before its time: a disk that is full, a terminal that has gone."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        lines = Lines()
        try:
            with self._log.open("ab", buffering=0) as log:
                for piece in self._pieces:
                    log.write(piece)
                    self._pass_on(lines.take(piece))
                self._pass_on(lines.end())
        except Exception as error:
            self._failure = error

    def _pass_on(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="replace")
            self.last.append(text)
            self._tell(self._name, text)
