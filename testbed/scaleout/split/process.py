"""A host of a network that is split, in a process of its own there: `python -m testbed.scaleout.split.process`.

    holder                                              host, as root
    HostProcess -- command: local, nsenter, ssh … -->   process --> SplitHost
                <--- requests and answers, pickled, on standard input and output --->

Requests are (number, method, arguments), answers (number, whether it went well, value or error). Each request has a
thread of its own, so a look is not held up by what takes long. When its input ends the process takes all away and ends:
so a holder that was killed, or whose connection broke, leaves nothing on any host.

Pickled values can run code. Whoever may start this process as root may do so anyway; that hosts of a network trust each
other as far as that is said in docs/scale.md.
"""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

from testbed.emulation.errors import EmulationError
from testbed.emulation.process import await_end
from testbed.scaleout.split.host import SplitHost

_LENGTH = struct.Struct(">I")

#: A host takes its part away within this; what it does not is found by its label (`testbed clean`).
END_S = 30.0


class HostLost(EmulationError):
    """A host no longer answers; the text begins with its name."""


class HostHandle(Protocol):
    """A host, wherever it is."""

    name: str

    def submit(self, method: str, *arguments: Any) -> Future[Any]:
        """Have it call a method, such as `part.build`. The result raises what that does, and HostLost."""

    def close(self) -> None:
        """Have it take all away."""


def call(host: SplitHost, method: str, arguments: Sequence[Any]) -> Any:
    """A method of a host, or of what it has."""
    target: Any = host
    for name in method.split("."):
        target = getattr(target, name)
    return target(*arguments)


class LocalHost:
    """A host in this process: of one that is pretended, or this machine itself."""

    def __init__(self, host: SplitHost) -> None:
        self.name = host.name
        self._host = host

    def submit(self, method: str, *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        threading.Thread(target=_carry_out, args=(self._host, method, arguments, done), daemon=True).start()
        return done

    def close(self) -> None:
        self._host.end()


class HostProcess:
    """A host in a process that `command` starts there, with its standard input and output ours."""

    def __init__(self, name: str, command: Sequence[str], *arguments: Any) -> None:
        """`arguments` are those of SplitHost after its name. Raises what that does, and HostLost."""
        self.name = name
        self._process = subprocess.Popen(
            [*command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._lost: HostLost | None = None
        self._reader = threading.Thread(target=self._read, name=f"host {name}", daemon=True)
        self._reader.start()
        try:
            self.submit("", name, *arguments).result()
        except BaseException:
            self.close()
            raise

    def submit(self, method: str, *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        with self._lock:
            if self._lost is not None:
                done.set_exception(self._lost)
                return done
            number = next(self._numbers)
            self._waiting[number] = done
            try:
                assert self._process.stdin is not None
                _write(self._process.stdin, (number, method, arguments))
            except OSError:  # the reader says that it is lost
                pass
        return done

    def close(self) -> None:
        if self._process.stdin is not None:
            with _ignored():
                self._process.stdin.close()
        await_end(self._process, END_S)
        self._reader.join()

    @property
    def pid(self) -> int:
        """The process that was started here."""
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        while (answer := _read(self._process.stdout)) is not None:
            number, good, value = answer
            with self._lock:
                done = self._waiting.pop(number, None)
            if done is None:
                continue
            if good:
                done.set_result(value)
            else:
                done.set_exception(value)
        with self._lock:
            self._lost = HostLost(f"{self.name} is lost: its process has ended, or the way to it is cut")
            for done in self._waiting.values():
                done.set_exception(self._lost)
            self._waiting.clear()


class _ignored:
    """Errors of a pipe whose other end is gone."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        return isinstance(error, OSError)


def _carry_out(host: SplitHost, method: str, arguments: Sequence[Any], done: Future[Any]) -> None:
    try:
        done.set_result(call(host, method, arguments))
    except BaseException as error:
        done.set_exception(error)


def _write(stream: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def _read(stream: IO[bytes]) -> Any:
    """The next value; None at the end."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    data = stream.read(*_LENGTH.unpack(head))
    return pickle.loads(data)


def main() -> int:
    """Do what the holder asks for until it is gone."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything prints is not an answer
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    lock, host = threading.Lock(), None

    def answer(number: int, good: bool, value: Any) -> None:
        with lock, _ignored():
            _write(answers, (number, good, value))

    def carry_out(number: int, method: str, arguments: Sequence[Any]) -> None:
        assert host is not None
        try:
            answer(number, True, call(host, method, arguments))
        except BaseException as error:
            answer(number, False, _plain(error))

    try:
        while (request := _read(requests)) is not None:
            if host is not None:
                threading.Thread(target=carry_out, args=request, daemon=True).start()
                continue
            try:
                host = SplitHost(*request[2])
                answer(request[0], True, None)
            except OSError as error:
                answer(request[0], False, _plain(error))
                return 1
    finally:
        if host is not None:
            host.end()
    return 0


def _plain(error: BaseException) -> BaseException:
    """It, or what can be said of it where it does not pickle."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


if __name__ == "__main__":
    sys.exit(main())
