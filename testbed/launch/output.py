"""The output of programs: kept in a file each, and passed on line by line.

A progress bar rewrites its line by carriage returns and ends it at last. So the newest state of a line that is not
ended yet is passed on too, about once a second.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

#: A line that goes on for longer is passed on in pieces: binary data, which ends no line.
LONGEST_LINE = 1 << 16

#: What is remembered of each for the moment in which it fails: a traceback of PyTorch's has some forty lines.
LAST_LINES = 40

#: How often the newest state of an unfinished line is passed on. A bar that is redrawn ten times a second would
#: otherwise fill the terminal, of each worker.
STATE_S = 1.0

#: Control sequences that move the cursor or erase (ECMA-48, section 8.3): beside other programs' lines they would
#: overwrite those. Colours (`m`) stay.
CURSOR = re.compile(rb"\x1b\[[0-9;?]*[A-HJKSTfhlsu]")

#: Told of a line: the program's name, and what it said.
Told = Callable[[str, str], None]


class Version(NamedTuple):
    """One version of a line: one that a carriage return has overwritten, or the last, which a line end has `finished`.

    `known` is True where `Lines.state` has returned the same text before.
    """

    text: bytes
    finished: bool
    known: bool


class Lines:
    """Bytes as they come, cut into lines, and the lines into the versions that carriage returns make of them."""

    def __init__(self) -> None:
        self._rest = b""
        self._state = b""  # the newest that `state` has returned of the unfinished line
        self._state_s: float | None = None  # when that was, or when the line was first seen; None before

    def take(self, piece: bytes) -> Iterator[Version]:
        """Yield the versions that this piece completes, each overwritten one before the one that overwrites it."""
        *whole, rest = (self._rest + piece).split(b"\n")
        for line in whole:
            yield from self._finished(line)
        # A return at the very end may be the first half of a line end, so it waits for what follows.
        *overwritten, self._rest = re.split(rb"\r+(?!\r|\Z)", rest)
        yield from self._overwritten(overwritten)
        if len(self._rest) > LONGEST_LINE:
            yield from self.end()

    def end(self) -> Iterator[Version]:
        """Yield what no line end followed."""
        if self._rest:
            yield from self._finished(self._rest)

    def state(self, now_s: float) -> bytes | None:
        """Return the newest state of the unfinished line: at most once in STATE_S, and only where it is another one.

        A line counts from the first call that finds it, so one that comes in two pieces is not torn.
        """
        text = _shown(self._rest)
        if not text.strip():
            return None
        if self._state_s is None:
            self._state_s = now_s
        if now_s - self._state_s < STATE_S or text == self._state:
            return None
        self._state, self._state_s = text, now_s
        return text

    def _finished(self, line: bytes) -> Iterator[Version]:
        *overwritten, last = line.rstrip(b"\r").split(b"\r")
        yield from self._overwritten(overwritten)
        text = _shown(last)
        yield Version(text, finished=True, known=bool(text) and text == self._state)
        self._rest, self._state, self._state_s = b"", b"", None

    def _overwritten(self, texts: Iterable[bytes]) -> Iterator[Version]:
        shown = (_shown(text) for text in texts)
        yield from (Version(text, finished=False, known=text == self._state) for text in shown if text.strip())


def _shown(text: bytes) -> bytes:
    return CURSOR.sub(b"", text.rstrip(b"\r"))


class Output:
    """The output of one program. It goes to `log` unchanged, and by line to `tell`, with the newest state of a line
    that is not finished. `hear` gets every version of every line, also those that a progress bar has overwritten."""

    def __init__(
        self, name: str, log: Path, tell: Told, pieces: Iterable[bytes], hear: Told = lambda name, line: None
    ) -> None:
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self._name = name
        self._log = log
        self._tell = tell
        self._hear = hear
        self._pieces = pieces
        self._lines = Lines()
        self._lock = threading.Lock()  # of `_lines`, which both the reader and whoever looks come to
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"output of {name}", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for its end, which comes once all that the program started has ended too."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def look(self, now_s: float) -> None:
        """Tell the newest state of an unfinished line, where that is due: a bar that stands still says nothing itself.

        Raises what ended the reading before its time: a disk that is full, a terminal that has gone.
        """
        if self._failure is not None:
            raise self._failure
        if self._lock.acquire(blocking=False):  # where the reader is at it, it tells the state itself
            try:
                self._tell_state(now_s)
            finally:
                self._lock.release()

    def _run(self) -> None:
        try:
            with self._log.open("ab", buffering=0) as log:
                for piece in self._pieces:
                    log.write(piece)
                    with self._lock:
                        self._pass_on(self._lines.take(piece))
                        self._tell_state(time.monotonic())
                with self._lock:
                    self._pass_on(self._lines.end())
        except Exception as error:
            self._failure = error

    def _pass_on(self, versions: Iterable[Version]) -> None:
        for version in versions:
            text = version.text.decode(errors="replace")
            self._hear(self._name, text)
            if version.finished:
                self.last.append(text)
                if not version.known:
                    self._tell(self._name, text)

    def _tell_state(self, now_s: float) -> None:
        if (state := self._lines.state(now_s)) is not None:
            self._tell(self._name, state.decode(errors="ignore"))  # its last character may be half there
