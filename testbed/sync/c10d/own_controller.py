"""A controller beside a process group's rank 0, for groups that are given none.

It ends with that process, however that ends, and takes its folder away: a rank that is killed can't.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from testbed.sync.errors import SyncError

#: What DistributedDataParallel has in a bucket, unless it is told otherwise: plans are made for sums of such a size.
BUCKET_BYTES = 25 * 1024 * 1024

#: It imports planning, and may have to compile the simulator's inner loop, on a machine that is busy. One that has
#: ended is noticed at once: this is for one that hangs.
START_S = 120.0
#: Members that have said goodbye are gone within moments.
END_S = 10.0
_POLL_S = 0.05

REMEDY = (
    "set TESTBED_CONTROLLER to the address of one, or put what rank 0 needs to start one on its machine: "
    "pip install '.[emulate]', and a C compiler"
)


class OwnController:
    """A process that serves `members` at `address`, each of which shows its own of the `tokens`.

    SyncError where it does not start.
    """

    def __init__(self, program: Sequence[str], members: Sequence[str], host: str, timeout_s: float) -> None:
        self._folder = TemporaryDirectory(prefix="testbed-wan-")
        folder = Path(self._folder.name)
        listening = socket.create_server((host, 0))  # handed over: a port that is let go may be another's by then
        where = f"{host}:{listening.getsockname()[1]}"
        self.address = f"tcp:{where}"
        words = ["--members", ",".join(members), "--listen", where, "--listening", str(listening.fileno())]
        words += ["--no-tls", "--secrets", str(folder / "secrets")]
        words += ["--model-bytes", str(BUCKET_BYTES), "--policy", "auto", "--round-timeout", str(timeout_s)]
        words += ["--out", str(folder / "out"), "--attached", str(folder)]
        self._log = (folder / "controller.log").open("w+b")
        with listening:
            self._process = subprocess.Popen(
                [*program, *words],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=_plain_environment(),
                pass_fds=[listening.fileno()],
                start_new_session=True,
            )
        try:
            self._await_start(folder / "out" / "admin.sock")
            self.tokens = {name: (folder / "secrets" / f"{name}.token").read_text().strip() for name in members}
        except BaseException:
            self._process.kill()
            self.close()
            raise

    def close(self) -> None:
        """End it, once its members have left."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            # At SIGTERM it would stop members that may still be in their last sum, which they end without it.
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._folder.cleanup()

    def _await_start(self, serves: Path) -> None:
        """Wait for the file that the controller makes once nothing that it needs is missing.

        Members may connect from the beginning: the socket listens, and holds them until the controller serves.
        """
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self._log.seek(0)
                said = self._log.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise SyncError(f"rank 0 could not start a controller: {said}. Mend that, or {REMEDY}")
            if serves.exists():
                return
            time.sleep(_POLL_S)
        raise SyncError(f"the controller that rank 0 started did not answer within {START_S:g} s: {REMEDY}")


def _plain_environment() -> dict[str, str]:
    """Ours, without what is for this rank: the controller is no part of the process group."""
    return {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "TESTBED_BACKEND")}
