"""The shaping core: compiling it, running its process, and sending it commands.

UserspaceShaper --"17", commands--> [ core/commands.c ] --"17 ok" or "17 error REASON"-->
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import time
from itertools import count
from pathlib import Path

from testbed.compiler import C_FLAGS, CompilerError, compile_c
from testbed.emulation.process import await_end, how_it_ended
from testbed.emulation.shaping.base import ShapingError
from testbed.errors import ending_of
from testbed.resources import BUILD

SOURCE = Path(__file__).with_name("core")
#: The binary's name stands out in a process list.
BINARY = BUILD / "testbed-shaper"
#: The core parses packets and runs as root: a write beyond an object's end must kill it, and its addresses must not be
#: predictable.
HARDENING = ("-D_FORTIFY_SOURCE=2", "-fstack-protector-strong", "-fPIE", "-pie", "-Wl,-z,relro,-z,now")
FLAGS = (*C_FLAGS, *HARDENING)

#: The core's exit code on a kernel without epoll_pwait2.
LACKS_EPOLL_PWAIT2 = 3

ANSWER_BYTES = 1 << 18
ANSWER_TIMEOUT_S = 10.0


def build_core() -> Path:
    """Return the compiled core, built first if its sources or flags have changed. Raises ShapingError."""
    try:
        return compile_c(sorted(SOURCE.glob("*.[ch]")), FLAGS, BINARY)
    except (CompilerError, OSError) as error:
        raise ShapingError(ending_of(error)[1]) from None


class CoreProcess:
    """The core's process. Requests are sent one at a time, each with a number that its answer repeats.

    So a late answer to a request that timed out is not taken for another's. Only one thread may use it.
    """

    def __init__(self) -> None:
        """Start the process. Raises ShapingError if it cannot be built or started."""
        core = build_core()
        self._numbers = count(1)
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            for end in (self._channel, theirs):
                for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                    end.setsockopt(socket.SOL_SOCKET, option, ANSWER_BYTES)
            # In a session of its own: Ctrl-C in the terminal must not end it before the network is taken down.
            try:
                self._process = subprocess.Popen(
                    [core], stdin=theirs.fileno(), stdout=subprocess.DEVNULL, start_new_session=True
                )
            except OSError as error:
                self._channel.close()
                remedy = f"{core} may not be executed; mount its file system without noexec"
                why = remedy if error.errno == errno.EACCES else ending_of(error)[1]
                raise ShapingError(f"the shaping core can't be started: {why}") from error

    @property
    def pid(self) -> int:
        """The core's process id."""
        return self._process.pid

    @property
    def realtime(self) -> bool:
        """True if the process has real-time priority."""
        if self.failure() is not None:
            return False
        self.ask("counters 0")  # the core sets its priority before it answers
        return os.sched_getscheduler(self.pid) == os.SCHED_RR

    def ask(self, commands: str, *files: int) -> list[str]:
        """Carry out commands at one instant, with open files for those that need one, and return the answer's lines.

        Raises:
            ShapingError: A command failed, and so did the rest; or no answer came in time, and the commands may be
                carried out late or never.
        """
        number = next(self._numbers)
        try:
            socket.send_fds(self._channel, [f"{number}\n{commands}".encode()], files)
            said, *lines = self._answer(number).splitlines() or [""]
        except TimeoutError:
            raise ShapingError(
                f"the shaping core did not answer within {ANSWER_TIMEOUT_S:g} s, so the change may not be in force: "
                "the process is stopped, or this host is overloaded; run less on this host at once",
                rule="timeout",
            ) from None
        except OSError as error:
            raise ShapingError(self.failure() or f"the shaping core cannot be reached: {error}") from error
        if said != "ok":
            raise ShapingError(said.removeprefix("error ") or self.failure() or "the shaping core has ended")
        return lines

    def failure(self) -> str | None:
        """Return why every link is dead; None if all is well."""
        status = self._process.poll()
        if status is None:
            return None
        if status == LACKS_EPOLL_PWAIT2:
            return "this kernel lacks epoll_pwait2: use Linux 5.11 or later, or the netem backend"
        return f"the shaping core {how_it_ended(status)}, so no link passes packets; take the network down and up again"

    def close(self) -> None:
        """Stop the core's process. Calling it twice is allowed."""
        self._channel.close()
        # The core ends at end of file; the kernel drops the packets that it held.
        await_end(self._process, ANSWER_TIMEOUT_S)

    def _answer(self, number: int) -> str:
        """Return the answer to a request; empty if the process has ended. Answers to earlier requests are skipped."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while (left_s := deadline - time.monotonic()) > 0:
            self._channel.settimeout(left_s)
            its, _, answer = self._channel.recv(ANSWER_BYTES).decode().partition(" ")
            if its in ("", str(number)):
                return answer
        raise TimeoutError
