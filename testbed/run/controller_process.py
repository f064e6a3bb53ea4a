"""The controller as a child process of the run, reached over its owner socket."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from testbed.controller.client import ControllerClient
from testbed.controller.model.spec import ControllerSpec
from testbed.controller.server.member_server import SOCKET
from testbed.controller.server.secret_file import write_secret
from testbed.emulation.containers.fleet import CONTROL_FOLDER
from testbed.emulation.process import await_end, how_it_ended, last_lines
from testbed.run.errors import RunFailed

#: A controller takes 2.5 s of processor time to start. Its end is noticed at once; the limit is for one that hangs.
START_DEADLINE_S = 120.0
END_DEADLINE_S = 10.0

#: The owner's socket, in the run's folder.
OWNER = "owner.sock"

#: The controller's address inside each container.
ADDRESS = f"unix:{CONTROL_FOLDER}/{SOCKET}"


class ControllerFailed(RunFailed):
    """The controller did not start, or has ended."""


class ControllerProcess:
    """The controller's process. A context manager: started on entering, terminated on leaving.

    `folder` is the folder of its sockets: the owner's, and `control/` with a folder for each container. `run` is the
    run's directory, where it writes its records and its log.
    """

    def __init__(self, spec: ControllerSpec, folder: Path, run: Path) -> None:
        self._spec = spec
        self._run = run
        self._folder = folder
        self.control = folder / "control"
        self.client = ControllerClient(folder / OWNER)

    def __enter__(self) -> ControllerProcess:
        spec = self._folder / "controller.json"
        write_secret(spec, self._spec.model_dump_json())
        for path in self._sockets:  # of a controller that was killed
            path.unlink(missing_ok=True)
        self._log = (self._run / "logs" / "controller.log").open("wb")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "testbed.controller"),
                *("--sockets", str(self.control), "--owner", str(self._folder / OWNER)),
                *("--spec", str(spec), "--out", str(self._run), "--parent", str(os.getpid())),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal reaches the run alone, which ends the controller
        )
        try:
            self._wait_until_there()
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        await_end(self._process, END_DEADLINE_S)
        self._log.close()

    def check(self) -> None:
        """Raise ControllerFailed when the process has ended."""
        if (status := self._process.poll()) is not None:
            log = Path(self._log.name)
            tail = "\n".join(last_lines(log, 10))
            raise ControllerFailed(f"the controller {how_it_ended(status)}; {log} ends with:\n{tail}")

    @property
    def _sockets(self) -> list[Path]:
        return [self._folder / OWNER, *(self.control / member / SOCKET for member in self._spec.members)]

    def _wait_until_there(self) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while not all(path.exists() for path in self._sockets):
            self.check()
            if time.monotonic() > deadline:
                raise ControllerFailed(
                    f"the controller did not start within {START_DEADLINE_S:g} s; its log is {self._log.name}"
                )
            time.sleep(0.02)
