"""Processes, named for good: a number alone may be given to another process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
BOOT = PROC / "sys/kernel/random/boot_id"

#: The flag of a process that is ending, in /proc/PID/stat (include/linux/sched.h).
PF_EXITING = 0x4


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process as records name it. Where a `boot` is empty, as in records of earlier versions, every one is meant;
    after another one, numbers and ticks have begun anew."""

    pid: int
    start_ticks: int
    boot: str = ""

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The process that has this number now; None when there is none, or only a zombie."""
        ticks = start_ticks(pid)
        return None if ticks is None else cls(pid, ticks, boot_id())

    @property
    def folder(self) -> Path:
        """Its folder in /proc."""
        return PROC / str(self.pid)

    @property
    def is_running(self) -> bool:
        """Whether this very process still lives."""
        return self.boot in ("", boot_id()) and start_ticks(self.pid) == self.start_ticks

    def opened(self) -> int | None:
        """A descriptor that stays with this process, and is readable once it has ended; None where it already has."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if self.is_running:  # so it was as the descriptor was opened
            return descriptor
        os.close(descriptor)
        return None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it still lives."""
        descriptor = self.opened()
        if descriptor is None:
            return
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return
        finally:
            os.close(descriptor)


def await_end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait for a child that was told to end, and kill it where it has not within `timeout_s`."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def boot_id() -> str:
    """What tells this run of the kernel from those before and after it."""
    return BOOT.read_text().strip()


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is no such process, or only a zombie."""
    fields = stat_fields(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def now_ticks() -> int:
    """Return the time since boot in clock ticks, as `start_ticks` has it."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def is_ending(pid: int) -> bool:
    """Return whether a process has ended or has begun to: by then it has left its control group and its namespaces."""
    fields = stat_fields(pid)
    return fields is None or fields[0] in "ZX" or bool(int(fields[6]) & PF_EXITING)


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third, the state, on; None when there is no such process.

    The second field is the command in parentheses and may hold spaces (proc(5)).
    """
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
