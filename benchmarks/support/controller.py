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

TOKEN = "benchmark"


@dataclass(frozen=True, slots=True)
class Controller:
    """Its address for `sync.join`, and where it writes what members report."""

    address: str
    out: Path

    def sent_bytes(self) -> int:
        """What all members have sent, in all rounds that they reported."""
        reports = (self.out / "rounds.jsonl").read_text().splitlines()
        return sum(int(json.loads(line)["sent_bytes"]) for line in reports)


@contextmanager
def controller(members: Sequence[str], model_bytes: int, codec: str = "fp32") -> Iterator[Controller]:
    """A controller of its own process, for as long as the context lasts."""
    with TemporaryDirectory(prefix="controller-") as folder:
        token, out = Path(folder) / "token", Path(folder) / "out"
        token.write_text(TOKEN)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        words = ["--members", ",".join(members), "--listen", f"127.0.0.1:{port}", "--token-file", str(token)]
        more = ["--model-bytes", str(model_bytes), "--codec", codec, "--out", str(out)]
        process = subprocess.Popen(
            [sys.executable, "-m", "testbed.controller.standalone", *words, *more], stderr=subprocess.DEVNULL
        )
        try:
            # The socket beside it serves members in other network namespaces, too: they share the file system.
            yield Controller(f"unix:{out / 'control.sock'}", out)
        finally:
            process.terminate()
            process.wait()
