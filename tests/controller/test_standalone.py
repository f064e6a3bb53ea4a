"""Two programs and a controller over TCP, as on machines of their own: the example of docs/sync.md, word for word."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from testbed import sync

pytestmark = pytest.mark.unit

GUIDE = Path(__file__).parents[2] / "docs" / "sync.md"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def start(stack: ExitStack, *command: str) -> subprocess.Popen[str]:
    return stack.enter_context(
        subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    )


def controller(stack: ExitStack, folder: Path, port: int) -> subprocess.Popen[str]:
    words = ["--members", "paris,tokyo", "--listen", f"127.0.0.1:{port}", "--token-file", str(folder / "token")]
    more = ["--model-bytes", "5000", "--codec", "int8", "--out", str(folder / "run")]
    return start(stack, "-m", "testbed.controller.standalone", *words, *more)


def test_the_guide_s_program_trains_on_two_machines(tmp_path: Path) -> None:
    program = re.search(r"```python\n(# train\.py.*?)```", GUIDE.read_text(), re.DOTALL)
    assert program
    (tmp_path / "train.py").write_text(program[1])
    port = free_port()
    with ExitStack() as stack:
        served = controller(stack, tmp_path, port)
        # The controller makes the token first of all.
        address = f"tcp:127.0.0.1:{port}"
        members = [
            start(stack, str(tmp_path / "train.py"), address, name, "127.0.0.1", str(tmp_path / "token"))
            for name in ("paris", "tokyo")
        ]
        outputs = [member.communicate(timeout=90) for member in members]
        assert [member.wait() for member in members] == [0, 0], outputs
        served.send_signal(signal.SIGTERM)
        assert served.wait(20) == 0, served.communicate()[1]
    lines = {out.splitlines()[-1] for out, _ in outputs}
    assert len(lines) == 1 and "parameters" in lines.pop()


def test_only_who_has_the_token_is_let_in(tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as stack:
        served = controller(stack, tmp_path, port)
        with pytest.raises(sync.Stopped, match="another token"):
            sync.join(f"tcp:127.0.0.1:{port}", "paris", "127.0.0.1", patience_s=30, token="guessed")
        served.terminate()
        assert served.wait(20) == 0


@pytest.mark.parametrize("address", ["tcp:host", "tcp::7000", "tcp:host:port", "unix:", "host:7000", "tcp:h:99999"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(sync.SyncError, match=r"write unix:/path/of/the.sock or tcp:host:port"):
        sync.join(address, "paris", "127.0.0.1", patience_s=1)


def test_an_address_to_listen_on_is_checked() -> None:
    with ExitStack() as stack:
        words = ["--members", "a", "--listen", "7000", "--token-file", "/dev/null", "--model-bytes", "1"]
        process = start(stack, "-m", "testbed.controller.standalone", *words, "--out", "/nonexistent")
        assert process.wait(20) == 2
        assert "token" in (said := process.communicate()[1]) or "HOST:PORT" in said
