"""The shaping core's process, as its owner sees it.

UserspaceShaper --"17", commands--> [ core/commands.c ] --"17 ok" or "17 error REASON"-->
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from itertools import count
from pathlib import Path

from testbed.compiler import C_FLAGS, CompilerError, compile_c
from testbed.emulation.process import await_end, how_it_ended
from testbed.emulation.shaping.base import ShapingError
from testbed.resources import BUILD

SOURCE = Path(__file__).with_name("core")
#: A name that stands out in a process list.
BINARY = BUILD / "testbed-shaper"
#: It reads what comes in packets, and runs as root: a write past an object's end shall end it, and no address in it
#: be known beforehand.
HARDENING = ("-D_FORTIFY_SOURCE=2", "-fstack-protector-strong", "-fPIE", "-pie", "-Wl,-z,relro,-z,now")
FLAGS = (*C_FLAGS, *HARDENING)

ANSWER_BYTES = 1 << 18
ANSWER_TIMEOUT_S = 10.0


def build_core() -> Path:
    """The compiled core, built first if its sources or flags are not those of the last build. ShapingError."""
    try:
        return compile_c(sorted(SOURCE.glob("*.[ch]")), FLAGS, BINARY)
    except CompilerError as error:
        raise ShapingError(str(error)) from None


class CoreProcess:
    """Requests go in one after the other, each with a number, and its answer comes with that.

    So what is answered after its caller has given up is taken for nothing else. Not for several threads at once.
    """

    def __init__(self) -> None:
        """Start it. Raises ShapingError when it cannot be built."""
        core = build_core()
        self._numbers = count(1)
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            for end in (self._channel, theirs):
                for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                    end.setsockopt(socket.SOL_SOCKET, option, ANSWER_BYTES)
            # In a session of its own: an interrupt from the terminal is for us, who then take the network
            # down.
            self._process = subprocess.Popen(
                [core], stdin=theirs.fileno(), stdout=subprocess.DEVNULL, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def realtime(self) -> bool:
        """Whether it goes in front of all ordinary processes."""
        if self.failure() is not None:
            return False
        self.ask("counters 0")  # what it asked the system for at its start it has by the time it answers
        return os.sched_getscheduler(self.pid) == os.SCHED_RR

    def ask(self, commands: str, *files: int) -> list[str]:
        """Have commands done at one instant, with open files where one needs them; the lines of the answer.

        Raises ShapingError with the reason when one of them, and so the rest, was not done, or when no answer comes in
        time: then they are done late or never.
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
        """Why every link is dead; None while all is well."""
        status = self._process.poll()
        if status is None:
            return None
        return f"the shaping core {how_it_ended(status)}, so no link passes packets; take the network down and up again"

    def close(self) -> None:
        """End it. A second time does nothing."""
        self._channel.close()
        # End of file is its signal to go; the kernel drops what it held.
        await_end(self._process, ANSWER_TIMEOUT_S)

    def _answer(self, number: int) -> str:
        """The answer to a request; empty when the process has gone. Those before it are of callers that gave up."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while (left_s := deadline - time.monotonic()) > 0:
            self._channel.settimeout(left_s)
            its, _, answer = self._channel.recv(ANSWER_BYTES).decode().partition(" ")
            if its in ("", str(number)):
                return answer
        raise TimeoutError
