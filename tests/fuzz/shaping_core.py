"""The C core with libFuzzer and sanitizers: messages of the kernel and commands of its parent.

core/world.c is the simulated world around it, and describes an input.
"""

from __future__ import annotations

import struct
import subprocess
from array import array
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from testbed.compiler import compile_c
from testbed.emulation.shaping.process import SOURCE
from testbed.emulation.shaping.userspace import encode
from testbed.link import CoDel, GilbertElliott, LinkState, Queue, Red

FOLDER = Path(__file__).with_name("core")

#: The calls that the world answers instead of the system.
WRAPPED = ("clock_now", "setns", "poll", "open", "ioctl", "socket", "close", "recvmmsg", "send", "recvmsg")
FLAGS = (
    *("-std=gnu11", "-g", "-Wall", "-Wextra", "-Wno-missing-field-initializers", f"-I{SOURCE}"),
    *("-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-Dmain=main_of_the_core"),
    *(f"-Wl,--wrap={name}" for name in WRAPPED),
)
#: The sanitizers, which end a search or a replay with a report.
SANITIZERS = "address,undefined,float-cast-overflow"

#: Kinds of records.
TIME, KERNEL, PASS, COMMAND, MOMENTS, REFUSE = range(6)
#: From linux/netfilter/nfnetlink_queue.h: a message's type, its attributes, and the flag of a super-packet.
PACKET, PACKET_HEADER, PAYLOAD, LENGTH, SKB_INFO, SKB_GSO = 3 << 8, 1, 10, 13, 14, 2


def build(folder: Path) -> Path:
    """Build the fuzzer by clang, since gcc has none. Raises CalledProcessError."""
    binary = folder / "core"
    flags = (*FLAGS, "-O1", f"-fsanitize=fuzzer,{SANITIZERS}")
    subprocess.run(["clang", *flags, "-o", binary, *SOURCE.glob("*.c"), FOLDER / "world.c", "-lm"], check=True)
    return binary


def build_replay(folder: Path) -> Path:
    """Build a program that feeds files to the core, by the core's own compiler. Raises CompilerError."""
    flags = (*FLAGS, "-O0", f"-fsanitize={SANITIZERS}")
    return compile_c([*sorted(SOURCE.glob("*.[ch]")), *sorted(FOLDER.glob("*.c"))], flags, folder / "core")


def record(kind: int, data: bytes = b"") -> bytes:
    """Return a record of an input."""
    return struct.pack("<BH", kind, len(data)) + data


def commands(*lines: str) -> bytes:
    """Return a message of the parent."""
    return record(COMMAND, "\n".join(("7", *lines)).encode())


def packet(number: int, link: int = 0, size: int = 1500, info: int = 0, namespace: int = 0) -> bytes:
    """Return a message of the kernel about a packet, in the form that the core asks for."""
    header = bytes([0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6]) + bytes(10) + bytes(12) + b"\x80" + bytes(27)
    attributes = b"".join(
        struct.pack("<HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)
        for kind, value in (
            (PACKET_HEADER, struct.pack(">IHB", number, 0x800, 1)),
            (PAYLOAD, header),
            (LENGTH, struct.pack(">I", size)),
            (SKB_INFO, struct.pack(">I", info)),
        )
    )
    about = struct.pack(">BBH", 0, 0, link)
    netlink = struct.pack("<IHHII", 20 + len(attributes), PACKET, 0, 0, 0)
    return record(KERNEL, bytes([namespace]) + netlink + about + attributes)


def passed(microseconds: int) -> bytes:
    """Let time pass, then the core makes a pass."""
    return record(TIME, struct.pack("<I", microseconds)) + record(PASS)


def attached(link: int, state: LinkState, namespace: int = 0) -> bytes:
    """Return the command that attaches a link."""
    return commands(f"attach {link} 1 {encode(state)} lo /{namespace}")


SLOW = LinkState(2e6, 0.01, jitter_s=0.002, queue=Queue(20, "packets"))
BURSTS = GilbertElliott(p=0.1, r=0.5)
PACKETS = b"".join(packet(number) for number in range(1, 9))
FLOOD = b"".join(packet(number, size=64000, info=SKB_GSO) for number in range(1, 40))
SEEDS: Mapping[str, bytes] = {
    "packets": attached(0, SLOW) + PACKETS + passed(5000) + packet(12) + passed(50_000) + commands("counters 0"),
    "flood": attached(0, replace(SLOW, rate_bps=64e3)) + FLOOD + passed(100_000) + commands("counters 0", "detach 0"),
    "reorder": attached(1, replace(SLOW, reorder=True)) + packet(1, 1) + packet(2, 1) + passed(9000) + passed(20_000),
    "bursts": attached(0, replace(SLOW, loss=BURSTS.mean, bursts=BURSTS)) + PACKETS + passed(10**6),
    **{
        name: attached(0, replace(SLOW, queue=Queue(90, "packets", discipline))) + FLOOD + passed(300_000)
        + packet(40) + passed(10**6) + commands(f"set 0 {encode(SLOW)}", "counters 0")
        for name, discipline in (("codel", CoDel()), ("red", Red(0.01, 0.9, 0.5)))
    },
    "later": attached(0, SLOW)
    + commands(f"later 0 0.001 {encode(replace(SLOW, up=False))}", f"later 0 0.002 {encode(SLOW)}")
    + PACKETS + passed(1500) + PACKETS + passed(1500) + commands("applied", "forget 0"),
    "schedule": attached(0, SLOW) + record(MOMENTS, array("Q", (1, 1, 3, 7)).tobytes())
    + commands("follow 0 0 1514 loop") + PACKETS + passed(9500) + commands("unfollow 0") + passed(10**6),
    "two": attached(0, SLOW) + attached(1, SLOW, 1) + packet(1) + packet(1, 1, namespace=1)
    + commands(f"set 1 {encode(SLOW)}"),
    "refused": record(REFUSE, b"\x01") + attached(0, SLOW) + commands("fly 0", "counters 0 0"),
}  # fmt: skip
