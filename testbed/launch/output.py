"""The output of programs: kept in a file for each, and passed on line by line.

A progress bar rewrites its line by carriage returns, and ends the line when it is done. So the newest state of an
unfinished line is passed on too, about once a second.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

#: The most bytes of a line; a longer one, such as binary data, is passed on in pieces.
LONGEST_LINE = 1 << 16

#: The number of last lines that are kept for a program that fails: a traceback of PyTorch's has some forty lines.
LAST_LINES = 40

#: Seconds between two states of an unfinished line. A bar that is redrawn ten times a second on each worker would
#: otherwise fill the terminal.
STATE_S = 1.0

#: Control characters and escape sequences (ECMA-48, sections 5 and 8.3). On a terminal they would overwrite other
#: programs' lines, or set its title and clipboard, or reset it. Colours (`m`) and tabs stay.
CONTROL = re.compile(
    rb"\x1b\[(?![0-9;]*m)[0-?]*[ -/]*[@-~]"  # a control sequence, such as one that moves the cursor
    rb"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # a control string, such as a title
    rb"|\x1b(?!\[)[ -/]*[0-~]"  # any other escape sequence
    rb"|\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f]"
)
#: Control characters of two bytes in UTF-8, and the replacement for them and for bytes that are not UTF-8. They are
#: replaced and not removed, since the bytes around them could form another control character.
C1_CONTROL, REPLACEMENT = re.compile(rb"\xc2[\x80-\x9f]"), "\N{REPLACEMENT CHARACTER}".encode()

#: The output after which a program overwrites its line: a carriage return, or a sequence that moves the cursor to the
#: first column (`G`) or to a line above (`A`, `F`), or that erases the line (`2K`).
AGAIN = rb"(?:\r|\x1b\[(?:[01]?G|2K|[0-9]*[AF]))"
#: The beginning of a sequence, whose end may follow.
CUT = rb"\x1b(?:\[[0-9;?]*)?"
#: AGAIN with more of the line after it. At the end of what has come so far, AGAIN has overwritten nothing yet, and its
#: carriage return may be the first half of a line end.
OVERWRITES = re.compile(rb"%b++(?!(?:%b)?\Z)" % (AGAIN, CUT))
LAST = re.compile(rb"%b*(?:%b)?\Z" % (AGAIN, CUT))

#: Called with a program's name and a line that it printed.
Told = Callable[[str, str], None]


class Version(NamedTuple):
    """One version of a line: one that a carriage return has overwritten, or the last one."""

    text: bytes
    #: Whether a line end followed.
    finished: bool
    #: Whether `Lines.state` has returned the same text before.
    known: bool


class Lines:
    """Cuts bytes into lines, and each line into the versions that carriage returns and their like make of it."""

    def __init__(self) -> None:
        self._rest = b""
        self._state = b""  # the last text that `state` returned of the unfinished line
        self._state_s: float | None = None  # when `state` returned it, or first saw the line; None before

    def take(self, piece: bytes) -> Iterator[Version]:
        """Yield the versions that a piece of output completes, the oldest first."""
        *whole, rest = (self._rest + piece).split(b"\n")
        for line in whole:
            yield from self._finished(line)
        # A return at the very end may be the first half of a line end, so it waits for what follows.
        *overwritten, self._rest = OVERWRITES.split(rest)
        yield from self._overwritten(overwritten)
        if len(self._rest) > LONGEST_LINE:
            yield from self.end()

    def end(self) -> Iterator[Version]:
        """Yield the rest, which no line end followed."""
        if self._rest:
            yield from self._finished(self._rest)

    def state(self, now_s: float) -> bytes | None:
        """Return the state of the unfinished line; None if it has not changed, or STATE_S have not passed.

        The first call that finds a line returns None, so that a line which arrives in two pieces is not torn. The time
        `now_s` is in monotonic seconds.
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
        *overwritten, last = OVERWRITES.split(line)
        yield from self._overwritten(overwritten)
        text = _shown(last)
        yield Version(text, finished=True, known=bool(text) and text == self._state)
        self._rest, self._state, self._state_s = b"", b"", None

    def _overwritten(self, texts: Iterable[bytes]) -> Iterator[Version]:
        shown = (_shown(text) for text in texts)
        yield from (Version(text, finished=False, known=text == self._state) for text in shown if text.strip())


def printable(text: bytes) -> bytes:
    """Return a text without what acts on a terminal: control characters and escape sequences, except colours."""
    return C1_CONTROL.sub(REPLACEMENT, CONTROL.sub(b"", text))


def _shown(text: bytes) -> bytes:
    return printable(LAST.sub(b"", text, count=1))


class Output:
    """Reads the output of one program from a thread, and writes it to its log unchanged.

    `tell` is called with each line, and with the newest state of an unfinished line; `hear` with every version of every
    line, also those that a progress bar has overwritten. `last` has the last LAST_LINES lines. `failure` is the error
    that ended the reading early, or None.
    """

    def __init__(self, name: str, log: Path, tell: Told, pieces: Iterable[bytes], hear: Told) -> None:
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self._name = name
        self._log = log
        self._tell = tell
        self._hear = hear
        self._pieces = pieces
        self._lines = Lines()
        self._lock = threading.Lock()  # guards `_lines`, which the reader and `look` use
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"output of {name}", daemon=True)

    def start(self) -> None:
        """Start to read the program's output, on a thread."""
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the output, which comes when all processes that the program started have ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def check(self) -> None:
        """Raise the error that ended the reading early, such as that of a full disk or a closed terminal."""
        if self.failure is not None:
            raise self.failure

    def look(self, now_s: float) -> None:
        """Pass the newest state of an unfinished line on, if that is due: a bar that stands still prints nothing.

        Raises:
            Exception: The error that `check` raises.
        """
        self.check()
        if self._lock.acquire(blocking=False):  # a reader that holds it passes the state on itself
            try:
                self._tell_state(now_s)
            finally:
                self._lock.release()

    def _run(self) -> None:
        try:
            with self._log.open("ab", buffering=0) as log:
                for piece in self._pieces:
                    try:
                        log.write(piece)
                    finally:  # a full disk must not hide why the program fails
                        with self._lock:
                            self._pass_on(self._lines.take(piece))
                            self._tell_state(time.monotonic())
                with self._lock:
                    self._pass_on(self._lines.end())
        except Exception as error:
            self.failure = error

    def _pass_on(self, versions: Iterable[Version]) -> None:
        for version in versions:
            text = version.text.decode(errors="replace")
            if version.finished:
                self.last.append(text)
            self._hear(self._name, text)
            if version.finished and not version.known:
                self._tell(self._name, text)

    def _tell_state(self, now_s: float) -> None:
        if (state := self._lines.state(now_s)) is not None:
            self._tell(self._name, state.decode(errors="ignore"))  # its last character may be incomplete
