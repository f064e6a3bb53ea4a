"""A controller that rank 0 of a process group starts, if the environment names none.

It ends with rank 0's process, however that ends, and deletes its own folder, which a killed rank could not do.
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

#: The default size of a bucket of DistributedDataParallel; plans are made for sums of this size.
BUCKET_BYTES = 25 * 1024 * 1024

#: The longest wait in seconds for the controller's start: it imports planning, and may compile the simulator's inner
#: loop on a busy machine. The end of its process is noticed at once; this limit is for a controller that hangs.
START_S = 120.0
#: The longest wait in seconds for the controller's end. Members that have sent Goodbye leave within moments.
END_S = 10.0
_POLL_S = 0.05

REMEDY = (
    "set TESTBED_CONTROLLER to a controller's address, or install on rank 0's machine the programs that start one: "
    "pip install '.[emulate]', and a C compiler"
)


class OwnController:
    """The process of a controller that rank 0 started for its own group.

    Args:
        program: The command that starts a controller; the options are appended.
        members: The members' names.
        host: The address at which the controller listens, on a free port.
        timeout_s: The longest time in seconds that a round may take.

    Attributes:
        address: The controller's address, `tcp:host:port`.
        tokens: The members' tokens, by name.

    Raises:
        SyncError: The controller did not start.
    """

    def __init__(self, program: Sequence[str], members: Sequence[str], host: str, timeout_s: float) -> None:
        self._folder = TemporaryDirectory(prefix="testbed-wan-")
        folder = Path(self._folder.name)
        listening = socket.create_server((host, 0))  # passed on: another program could take the port of a closed socket
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
        """End the controller, after its members have left or END_S have passed."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            # SIGTERM would make the controller stop members in their last sum, which they can end without it.
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._folder.cleanup()

    def _await_start(self, ready: Path) -> None:
        """Wait for the file that the controller makes when it is ready.

        Members may connect before: the socket listens, and queues their connections until the controller accepts them.
        """
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self._log.seek(0)
                last_line = self._log.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise SyncError(f"rank 0 could not start a controller: {last_line}. Correct that, or {REMEDY}")
            if ready.exists():
                return
            time.sleep(_POLL_S)
        raise SyncError(f"the controller that rank 0 started did not answer within {START_S:g} s: {REMEDY}")


def _plain_environment() -> dict[str, str]:
    """Return this process's environment without this rank's variables: the controller is not part of the group."""
    return {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "TESTBED_BACKEND")}
