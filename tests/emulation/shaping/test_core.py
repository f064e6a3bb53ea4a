"""The core under the sanitizers of addresses and of undefined behaviour.

It gets messages that are wrong, and lives a life with all that it can do.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path as FilePath

import pytest

from testbed.compiler import C_FLAGS, compile_c
from testbed.emulation.shaping import ShapingError, process
from testbed.emulation.shaping.userspace import UserspaceShaper
from testbed.link import CoDel, Delivery, GilbertElliott, LinkState, Opportunities, Queue, Red
from tests.emulation.shaping.path import Path, burst
from tests.emulation.shaping.sanitized import sanitized
from tests.emulation.shaping.super_packet import super_packet
from tests.waiting import PATIENCE_S

STATE = b"1e6 48448 0.01 0 0 0 1 0 1 0 0 0 0 0"
SOURCE = FilePath(process.__file__).with_name("core")
#: What is wrong with it, by the message.
WRONG = {
    b"counters 0": "begins with its number",
    b"1": "begins with its number",
    b"-1\ncounters 0": "begins with its number",
    b"99999999999999999999\ncounters 0": "begins with its number",
    b"1\ncounters 0\0": "no byte of 0",
    b"1\n" + b"counters 0 " * 30000: "262143 at most",
    b"1\nattach": "LINK must be a whole number from 0 to 4095, here: nothing",
    b"1\nattach 4096 1 " + STATE + b" lo /proc/self/ns/net": "LINK must be a whole number from 0 to 4095",
    b"1\nattach 1.5 1 " + STATE + b" lo /proc/self/ns/net": "LINK must be a whole",
    b"1\nattach -1 1 " + STATE + b" lo /proc/self/ns/net": "LINK must be",
    b"1\nattach 99999999999999999999 1 " + STATE + b" lo /x": "LINK must be",
    b"1\nattach nan 1 " + STATE + b" lo /proc/self/ns/net": "LINK must be",
    b"1\nattach 0x1p900 1 " + STATE + b" lo /proc/self/ns/net": "LINK must be",
    b"1\nattach 0 -1 " + STATE + b" lo /proc/self/ns/net": "SEED must be",
    b"1\nattach 0 1 " + STATE: "INTERFACE must be a word",
    b"1\nattach 0 1 " + STATE + b" " + b"x" * 16 + b" /x": "INTERFACE must be a word of 1 to 15 characters",
    b"1\nattach 0 1 " + STATE + b" ../lo /proc/self/ns/net": "INTERFACE has no slash",
    b"1\nattach 0 1 " + STATE + b" lo": "NAMESPACE begins with one",
    b"1\nattach 0 1 " + STATE + b" lo /no/such": "namespace /no/such: No such file",
    b"1\nattach 0 1 " + STATE + b" lo /" + b"x" * 8000: "namespace /x",
    b"1\nattach 0 1 -1 0 0 0 0 0 1 0 1 lo /x": "RATE must be a number from 0 to 1e+12, here: -1",
    b"1\nattach 0 1 inf 0 0 0 0 0 1 0 1 lo /x": "RATE must be",
    b"1\nattach 0 1 1e6 nan 0 0 0 0 1 0 1 lo /x": "LIMIT must be",
    b"1\nattach 0 1 1e6 0 1e300 0 0 0 1 0 1 lo /x": "DELAY must be",
    b"1\nattach 0 1 1e6 0 0 -1 0 0 1 0 1 lo /x": "JITTER must be",
    b"1\nattach 0 1 1e6 0 0 0 2 0 1 0 1 lo /x": "REORDER must be",
    b"1\nattach 0 1 1e6 0 0 0 0 1.5 1 0 1 lo /x": "GOOD must be",
    b"1\nset 0 " + STATE: "link 0 is not attached",
    b"1\nlater 0 1 " + STATE: "link 0 is not attached",
    b"1\nfollow 0 0 1514 loop": "link 0 is not attached",
    b"1\ncounters": "LINK must be",
    b"1\ncounters 0 0": "more than the command has",
    b"1\nfly 0": "no such command: fly",
    b"1\n" + b"x" * 2000: "a command must be a word",
    b"1\n%s%n%s%n 0": "no such command: %s%n%s%n",
}


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilePath]:
    with sanitized(tmp_path_factory.mktemp("sanitized")) as core:
        yield core


def ask(channel: socket.socket, message: bytes) -> str:
    channel.send(message)
    return channel.recv(1 << 18).decode()


@pytest.mark.local
def test_what_it_cannot_do_it_says_and_goes_on(core: FilePath) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, subprocess.Popen([core], stdin=theirs, stderr=subprocess.PIPE, text=True) as process:
        ours.settimeout(PATIENCE_S)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        for message, complaint in WRONG.items():
            number, _, reason = ask(ours, message).partition(" error ")
            assert complaint in reason, message
            assert number == ("0" if complaint == "begins with its number" else "1")
            assert ask(ours, b"7\ncounters 0") == "7 ok"
        ours.close()
        assert process.communicate(timeout=PATIENCE_S)[1] == ""
        assert process.returncode == 0


#: What is wrong with it, by a command about a link that is attached, and with it 64-bit moments in a file, or none.
WRONG_OF_A_LINK = {
    ("attach 0 1 1e6 0 0 0 0 0 1 0 1 0 0 0 0 0 lo /x", None): "link 0 is attached already",
    ("set 0 1e6 0 0 0 0 0 1 0", None): "R must be a number from 0 to 1, here: nothing",
    ("set 0 1e6 0 0 0 0 0 1 0 1 0 0 0 0 0 1", None): "more than the command has: 1",
    ("set 0 1e6 0 0 0 0 0 1 0 1", None): "DISCIPLINE must be a whole number from 0 to 2, here: nothing",
    ("set 0 1e6 0 0 0 0 0 1 0 1 3 0 0 0 0", None): "DISCIPLINE must be",
    ("set 0 1e6 0 0 0 0 0 1 0 1 2 1 3 2 0", None): "CHANCE must be",
    ("later 0 inf 1e6 0 0 0 0 0 1 0 1 0 0 0 0 0", None): "MOMENT must be",
    ("follow 0 0 1514 loop", None): "no file of moments",
    ("follow 0 0 1514 loop", ()): "holds no moments",
    ("follow 0 0 1514 loop", (0, 0)): "do not rise",
    ("follow 0 0 1514 loop", (5, 4)): "do not rise",
    ("follow 0 0 1514 loop", (5, 1 << 60)): "do not rise",
    ("follow 0 0 0 loop", (5,)): "BYTES must be",
    ("follow 0 0 1514 never", (5,)): "END must be loop, hold or stop",
}


@pytest.mark.local
def test_a_long_replay_takes_no_more_memory_than_what_is_ahead(tmp_path: FilePath) -> None:
    sources = [SOURCE / "core.h", SOURCE / "change.c", FilePath(__file__).with_name("replay.c")]
    replay = compile_c(sources, (*C_FLAGS, "-Werror", f"-I{SOURCE}"), tmp_path / "replay")
    said = subprocess.run([replay], capture_output=True, text=True, check=True).stdout
    room, *left = map(int, said.split())
    assert left == list(range(100_000, 100_050))
    assert room <= 4 * len(left)


@pytest.mark.system
def test_it_lives_through_commands_traffic_and_its_end(
    core: FilePath, path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fast = LinkState(50e6, 0.002, queue=Queue(400, "packets"))
    jittered = replace(fast, jitter_s=0.001, reorder=True)
    bursts = GilbertElliott(p=0.1, r=0.5)
    there, back = path.there.link, path.back.link
    with UserspaceShaper() as shaper:
        process = shaper._core._process
        assert process.args == [core]
        shaper.attach({path.there: fast, path.back: fast})
        for (command, moments), complaint in WRONG_OF_A_LINK.items():
            with memfd(moments) as files, pytest.raises(ShapingError, match=complaint):
                shaper._core.ask(command, *files)
        assert len(burst(path, 300)) == 300
        shaper.apply({there: jittered, back: jittered})
        assert len(burst(path, 300)) == 300
        shaper.apply({there: replace(fast, loss=bursts.mean, bursts=bursts)})
        assert 0 < len(burst(path, 300)) < 300
        for discipline in (CoDel(), Red()):
            shaper.apply({there: LinkState(1e6, 0.001, queue=Queue(400, "packets", discipline)), back: fast})
            assert 20 < len(burst(path, 800, quiet_s=0.5)) < 800
        shaper.apply({there: LinkState(64e3, 0.001), back: fast})
        assert len(burst(path, 3000, quiet_s=0.5)) < 100
        shaper.apply({there: replace(fast, delivery=Delivery(Opportunities((1, 1, 3)), time.monotonic()))})
        assert super_packet(path, 40) == 40
        now = time.monotonic()
        shaper.apply({there: fast}, {there: [(now + 0.05 + part * 1e-6, fast) for part in range(5000)]})
        assert len(path.answered(10)) == 10
        assert shaper.applied() != []
        for _ in range(20):
            shaper.detach(there)
            shaper.attach({path.there: jittered})
        assert set(shaper.counters()) == {there, back}
    assert process.returncode == 0
    assert capfd.readouterr().err == ""


@contextmanager
def memfd(moments: tuple[int, ...] | None) -> Iterator[list[int]]:
    """Yield an open file with these moments in it, or none."""
    if moments is None:
        yield []
        return
    with os.fdopen(os.memfd_create("moments"), "wb") as file:
        array("Q", moments).tofile(file)
        file.flush()
        yield [file.fileno()]
