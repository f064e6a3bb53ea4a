"""Boot the guest kernel on the host's own files and run a command in it: pytest, or a benchmark.

    host                                        guest (user-mode-linux)
    test_in_guest(["-m", "guest"]) ─► linux.uml ─► init script: tmpfs on /run, …; modules; lo up
                                                   └─► pytest ─► exchange/junit.xml, exchange/status
    GuestResult ◄── files of the exchange ◄─────── power off, whatever happened

The host's file system is the guest's root, read-only; what tests write goes to memory (TMPDIR, /run, /var/lib), and
only the exchange directory comes back. A disk, if one is given, is /var/lib/docker; what is written there is gone with
the guest too. The guest has one CPU, and sees the time and the environment of its own init script alone.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
KERNEL = "linux.uml"
PACKAGE = "user-mode-linux"
MODULES = Path("/usr/lib/uml/modules")
MEMORY = "2G"

#: The guest saves a process's SSE registers when it interrupts it, but not the wider ones (see
#: `hide_wide_registers`), so nothing in it may use them. These are the switches of the C library, NumPy,
#: PyTorch with its oneDNN, and Go, which the Docker engine is written in.
NARROW = {
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW,-AVX_Fast_Unaligned_Load",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "GODEBUG": "cpu.all=off",
}

#: Seconds between two ticks from outside (`_tick`).
TICK_S = 1.0

#: Process 1 and modprobe, which the kernel and iptables start with an environment of their own, need this one of them.
#: The kernel hands process 1 the words of its command line that it does not know itself.
INIT_NARROW = ("GLIBC_TUNABLES",)

#: The host's files as a read-only root, and the console on the kernel's standard output.
BOOT = ("root=/dev/root", "rootfstype=hostfs", "ro", "con=null", "con0=null,fd:1", "quiet")

#: What shaping, the network and the engine need.
KERNEL_MODULES = (
    *("sch_netem", "sch_htb", "sch_tbf", "sch_codel", "sch_red"),
    *("iptable_mangle", "xt_NFQUEUE", "nfnetlink_queue"),
    *("veth", "bridge", "br_netfilter", "openvswitch", "tun", "overlay"),
)

INIT = """#!/bin/sh
# Process 1 of the guest: when it ends, the guest has failed; so it powers off however it comes to its end.
trap 'echo o > /proc/sysrq-trigger; sleep 10' EXIT
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mountpoint -q /dev || mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
for directory in /dev/shm /run /var/log /var/lib; do mount -t tmpfs tmpfs $directory; done
mkdir /var/lib/docker
test -b /dev/ubda && mount -t ext4 /dev/ubda /var/lib/docker
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /run/exchange /run/kernel/lib /run/netns /run/tmp
mount -t hostfs hostfs /run/exchange -o {exchange}
# The kernel's own requests for modules go through this too, and those of iptables.
ln -s {modules} /run/kernel/lib/modules
printf '#!/bin/sh\\nexport %s\\nexec /sbin/modprobe --dirname=/run/kernel "$@"\\n' {init_narrow} > /run/modprobe
chmod +x /run/modprobe
echo /run/modprobe > /proc/sys/kernel/modprobe
/run/modprobe -a {kernel_modules}
mkdir /run/bin
# Testbeds' containers are on no network of the engine's; without one it starts in 2 s and not in 12. What its own file
# says on the host, which may be otherwise, is out of sight.
test -d /etc/docker && mount -t tmpfs tmpfs /etc/docker
dockerd=$(command -v dockerd)
printf '#!/bin/sh\\nexec %s --bridge=none --iptables=false --ip6tables=false "$@"\\n' $dockerd > /run/bin/dockerd
chmod +x /run/bin/dockerd
ln -s /run/exchange/runc /run/bin/runc
ip link set lo up
cd {repository}
env -i {environment} {command}
echo $? > /run/exchange/status
"""


#: Takes runc's place: runc, in Go, starts itself again with an empty environment, so that its switch does not reach
#: it, and every container died at its start; crun is in C. Containers get `NARROW` in their environment too.
RUNC = """#!/bin/sh
for word; do
    [ "$before" = --bundle ] && sed -i 's/"env":\\[/"env":[{variables},/' "$word/config.json"
    before=$word
done
exec crun "$@"
"""


class GuestError(RuntimeError):
    """The guest produced no result. The text has the reason and the end of its console."""


@dataclass(frozen=True, slots=True)
class GuestResult:
    """The result of a run in the guest.

    It has the exit status, pytest's JUnit report, all of the guest's output, and the lines of the tests' judgements
    (tests/measuring.py).
    """

    status: int
    junit: str
    console: str
    judgements: str = ""


def test_in_guest(arguments: Sequence[str], *, limit_s: float, disk: Path | None = None) -> GuestResult:
    """Run pytest with these arguments in the guest. Raises GuestError as `run_in_guest` does."""
    pytest = [sys.executable, "-m", "pytest", "--color=no", "-p", "no:cacheprovider"]
    return run_in_guest([*pytest, "--junitxml=/run/exchange/junit.xml", *arguments], limit_s=limit_s, disk=disk)


test_in_guest.__test__ = False  # type: ignore[attr-defined]


def run_in_guest(
    command: Sequence[str],
    *,
    limit_s: float,
    disk: Path | None = None,
    follow: Callable[[str], object] = lambda _: None,
    boot: Sequence[str] = (),
) -> GuestResult:
    """Run a command in the guest.

    Args:
        command: The command.
        limit_s: The time after which the guest is killed.
        disk: An ext4 file with a Docker engine's data.
        follow: Gets each line of the console as it comes.
        boot: More words of the kernel's command line, such as `ipv6.disable=1`.

    Raises:
        GuestError: There is no guest kernel, it crashed, or it was still running after `limit_s`.
    """
    kernel = shutil.which(KERNEL)
    if kernel is None or not MODULES.is_dir():
        raise GuestError(f"no guest kernel; install it: apt-get install {PACKAGE}")
    with tempfile.TemporaryDirectory(prefix="testbed-guest-", dir="/var/tmp") as name:
        exchange = Path(name)
        init = exchange / "init"
        init.write_text(_init_script(exchange, command))
        runc = exchange / "runc"
        runc.write_text(_runc_script())
        for script in (init, runc):
            script.chmod(0o755)
        console = _boot(
            [
                # It runs its guest's processes in processes of the host, which outlive it when it is killed: all but
                # those of a process namespace whose first it is.
                *("unshare", "--pid", "--fork", "--kill-child"),
                kernel,
                f"mem={MEMORY}",
                f"init={init}",
                # Written to a file beside it, sparse and soon gone: the disk itself stays as it is.
                *([f"ubd0={exchange}/changes,{disk}"] if disk else []),
                *BOOT,
                *boot,
                *_init_narrow(),
            ],
            limit_s,
            follow,
        )
        status, junit = exchange / "status", exchange / "junit.xml"
        if not status.exists():
            raise GuestError(
                f"the guest went down before its command ended. The end of its console:\n{console[-8000:]}"
            )
        judgements = exchange / "physics.jsonl"
        report, judged = (file.read_text() if file.exists() else "" for file in (junit, judgements))
        return GuestResult(int(status.read_text()), report, console, judged)


def _init_script(exchange: Path, command: Sequence[str]) -> str:
    environment = {
        "PATH": "/run/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/run/tmp",
        "TMPDIR": "/run/tmp",
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TESTBED_PHYSICS": "/run/exchange/physics.jsonl",
        **NARROW,
    }
    return INIT.format(
        exchange=shlex.quote(str(exchange)),
        kernel_modules=" ".join(KERNEL_MODULES),
        modules=shlex.quote(str(MODULES)),
        init_narrow=shlex.quote(" ".join(_init_narrow())),
        repository=shlex.quote(str(REPOSITORY)),
        environment=shlex.join(f"{key}={value}" for key, value in environment.items()),
        command=shlex.join(command),
    )


def _init_narrow() -> list[str]:
    return [f"{name}={NARROW[name]}" for name in INIT_NARROW]


def _runc_script() -> str:
    variables = ",".join(f'"{name}={value}"' for name, value in NARROW.items())
    return RUNC.format(variables=variables)


def _boot(command: list[str], limit_s: float, follow: Callable[[str], object]) -> str:
    """Run the kernel in a process group of its own and return its console. Past the limit the whole group is killed."""
    lines = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=_as_a_guest,
    ) as guest:
        assert guest.stdout
        deadline = time.monotonic() + limit_s
        limit = threading.Timer(limit_s, os.killpg, (guest.pid, signal.SIGKILL))
        limit.start()
        ended = threading.Event()
        threading.Thread(target=_tick, args=(guest.pid, ended), daemon=True).start()
        try:
            for line in guest.stdout:
                lines.append(line)
                follow(line.rstrip("\n"))
        except BaseException:
            os.killpg(guest.pid, signal.SIGKILL)
            raise
        finally:
            limit.cancel()
            ended.set()
    console = "".join(lines)
    if time.monotonic() >= deadline:
        raise GuestError(f"the guest was killed, still running after {limit_s:g} s. Its console:\n{console[-8000:]}")
    return console


def _tick(unshare: int, ended: threading.Event) -> None:
    """Send the kernel SIGALRM once a second, until it has ended.

    The guest's only clock is a one-shot timer of the host, and the idle kernel sometimes misses its signal on a busy
    host: it then polls a timer that is no longer set, for ever. A signal too many does nothing; one sent before the
    kernel handles it would end it.
    """
    while not ended.wait(TICK_S):
        try:
            kernel = int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()[0])
            caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{kernel}/status").read_text(), re.MULTILINE)
            if caught and int(caught[1], 16) >> (signal.SIGALRM - 1) & 1:
                os.kill(kernel, signal.SIGALRM)
        except (OSError, IndexError):
            continue


def _as_a_guest() -> None:
    """Before the kernel is executed: let it end with this process, and leave wide registers alone."""
    end_with_parent = 1
    ctypes.CDLL(None, use_errno=True).prctl(end_with_parent, signal.SIGKILL, 0, 0, 0)
    hide_wide_registers()


def hide_wide_registers() -> None:
    """Let this process's PTRACE_GETREGSET and SETREGSET fail, as on a machine without extended registers.

    The guest kernel keeps its processes' registers by ptrace, in a buffer of fixed size. Where the processor has larger
    registers (AMX) the host refuses to set so few, and the guest dies at its first process. Without these requests it
    falls back to the registers of the SSE age, which always work. A seccomp filter lets a process do without a system
    call; it must be set before the kernel is executed.
    """
    ptrace, get_register_set, set_register_set = 101, 0x4204, 0x4205
    load, equal, answer = 0x20, 0x15, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | 5  # EIO

    def step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
        return struct.pack("=HBBI", code, then, otherwise, value)

    # Offsets in struct seccomp_data: 0 the call's number, 16 the low half of its first argument.
    program = b"".join([
        step(load, 0),
        step(equal, ptrace, otherwise=4),
        step(load, 16),
        step(equal, get_register_set, then=1),
        step(equal, set_register_set, otherwise=1),
        step(answer, refuse),
        step(answer, allow),
    ])  # fmt: skip
    buffer = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    filter_ = ctypes.create_string_buffer(head, len(head))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, seccomp, filter_mode = 38, 22, 2
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.prctl(seccomp, filter_mode, filter_, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot filter the guest's system calls")
