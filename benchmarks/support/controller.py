"""A controller in a process of its own, for members of a benchmark that join over loopback."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from testbed.controller.server.member_server import SOCKET


@dataclass(frozen=True, slots=True)
class Controller:
    """A controller that runs, and writes what members report into `out`."""

    out: Path

    def address(self, member: str) -> str:
        """Return the address at which a member joins, for `sync.join`."""
        return f"unix:{self.out / 'control' / member / SOCKET}"

    def sent_bytes(self) -> int:
        """Return the bytes that all members have sent, in all rounds that they reported."""
        reports = (self.out / "rounds.jsonl").read_text().splitlines()
        return sum(int(json.loads(line)["sent_bytes"]) for line in reports)


@contextmanager
def controller(members: Sequence[str], model_bytes: int, codec: str = "fp32") -> Iterator[Controller]:
    """Run a controller in a process of its own until the context is left."""
    with TemporaryDirectory(prefix="controller-") as folder:
        out = Path(folder) / "out"
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        words = ["--members", ",".join(members), "--listen", f"127.0.0.1:{port}", "--secrets", f"{folder}/secrets"]
        more = ["--model-bytes", str(model_bytes), "--codec", codec, "--out", str(out)]
        process = subprocess.Popen(
            [sys.executable, "-m", "testbed.controller.standalone", *words, *more], stderr=subprocess.DEVNULL
        )
        try:
            # By its Unix sockets it serves members in other network namespaces, too: they share the file system.
            yield Controller(out)
        finally:
            process.terminate()
            process.wait()
