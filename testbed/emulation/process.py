"""Processes identified beyond their number, which the kernel may give to another process."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: include/uapi/linux/pidfd.h: a mask, then fields that are not requested here, and the exit status at the end.
_PIDFD_INFO_BYTES = 64
_PIDFD_GET_INFO = 3 << 30 | _PIDFD_INFO_BYTES << 16 | 0xFF << 8 | 11
_PIDFD_INFO_EXIT = 1 << 3

PROC = Path("/proc")
BOOT = PROC / "sys/kernel/random/boot_id"

#: The flag of a process that is ending, in /proc/PID/stat (include/linux/sched.h).
PF_EXITING = 0x4

#: `last_lines` reads at most this much of the end of a log.
TAIL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process as records name it: its number, its start time and the boot.

    Numbers and ticks start again after a reboot. An empty `boot`, as in records of earlier versions, matches every
    boot.
    """

    pid: int
    start_ticks: int
    boot: str = ""

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return the process that has this number now; None if there is none, or only a zombie."""
        ticks = start_ticks(pid)
        return None if ticks is None else cls(pid, ticks, boot_id())

    @classmethod
    def own(cls) -> ProcessIdentity:
        """Return this process."""
        own = cls.of(os.getpid())
        assert own is not None
        return own

    @property
    def folder(self) -> Path:
        """The process's folder in /proc."""
        return PROC / str(self.pid)

    @property
    def is_running(self) -> bool:
        """True if this very process is alive."""
        return self.boot in ("", boot_id()) and start_ticks(self.pid) == self.start_ticks

    def opened(self) -> int | None:
        """Return a descriptor (pidfd) of this process, readable once it has ended; None if it has already ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if self.is_running:  # so the descriptor is of this process
            return descriptor
        os.close(descriptor)
        return None

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal, if it is alive."""
        descriptor = self.opened()
        if descriptor is None:
            return
        try:
            send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def send_signal(descriptor: int, number: signal.Signals) -> None:
    """Send a signal to the process of a descriptor (pidfd), if the process has not ended."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(descriptor, number)


def await_end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait for a child that was told to end, and kill it if it has not ended within `timeout_s`."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def how_it_ended(status: int) -> str:
    """Return how a child ended, in words, from its `Popen.returncode`: a negative number is a signal's."""
    return f"was ended by signal {signal_in_words(-status)}" if status < 0 else f"ended with exit code {status}"


def last_lines(log: Path, count: int, without: str | None = None) -> list[str]:
    """Return the last `count` lines of a text file, from its last TAIL_BYTES; lines with `without` are left out."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return [line for line in lines if without is None or without not in line][-count:]


def wait_status(descriptor: int) -> int | None:
    """Return the status that `waitpid` reported for an ended process, read through its pidfd.

    Returns None if the parent has not waited yet, or before Linux 6.15.
    """
    answer = bytearray(_PIDFD_INFO_BYTES)
    struct.pack_into("Q", answer, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(descriptor, _PIDFD_GET_INFO, answer)
    except OSError:
        return None
    (told,), (status,) = struct.unpack_from("Q", answer), struct.unpack_from("i", answer, _PIDFD_INFO_BYTES - 4)
    return int(status) if told & _PIDFD_INFO_EXIT else None


def signal_in_words(number: int) -> str:
    """Return a signal's number with its name, if it has one."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


def boot_id() -> str:
    """Return the ID of the current boot."""
    return BOOT.read_text().strip()


def start_ticks(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot; None if there is no such process, or only a zombie."""
    fields = stat_fields(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def now_ticks() -> int:
    """Return the time since boot in clock ticks, comparable with `start_ticks`."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def is_ending(pid: int) -> bool:
    """Return whether a process has ended or is ending: then it has left its control group and its namespaces."""
    fields = stat_fields(pid)
    return fields is None or fields[0] in "ZX" or bool(int(fields[6]) & PF_EXITING)


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third one (the state) on; None if there is no such process.

    The second field is the command in parentheses. It may contain spaces (proc(5)) and, since the kernel cuts it after
    15 bytes, half of a character. The flags are the 9th field, at index 6 here, and the start time the 22nd, at index
    19.
    """
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
