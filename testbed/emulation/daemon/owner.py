"""The process that keeps a network up: `python -m testbed.emulation.daemon.owner --name N … TOPOLOGY`.

It belongs to no terminal. While it builds the network, it reports progress on its standard output, one JSON object a
line: `{"step": title}`, `{"done": title}`, and finally `{"up": name}`, or `{"failed": text, "code": exit code}` when
nothing is left of what it had begun. If the reader of that output has gone, it removes everything. Once the network is
up, it answers requests over the API's socket until SIGTERM, and logs to `owner.log` in the network's state folder.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, get_args

from testbed.api.entry import write_entry
from testbed.emulation import label
from testbed.emulation.containers.fleet import ProgramContainers
from testbed.emulation.daemon.subject import serve_network
from testbed.emulation.errors import ending_of
from testbed.emulation.interrupt import Interrupted, interruptible
from testbed.emulation.testbed import Backend
from testbed.errors import FAILED

DONE = 0

LOG = "owner.log"

log = logging.getLogger(__name__)


class ProgressPipe:
    """Reports progress on the original standard output.

    No child inherits that output: the shaping core would keep it open, and its reader would wait for the end.
    """

    def __init__(self) -> None:
        self._lines = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def send(self, message: dict[str, Any]) -> None:
        """Send one message, as a line of JSON. Raises BrokenPipeError if the reader has gone."""
        print(json.dumps(message), file=self._lines, flush=True)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Report the start and the end of a step."""
        self.send({"step": title})
        yield
        self.send({"done": title})

    def fail(self, code: int, text: str) -> int:
        """Log a failure, report it if the reader is still there, and return the exit code."""
        log.error("%s", text)
        with suppress(BrokenPipeError):
            self.send({"failed": text, "code": code})
        return code

    def close(self, path: Path) -> None:
        """End the reports; from here on, output goes to the log file at `path`."""
        self._lines.close()
        with path.open("ab") as file:
            for number in (1, 2):
                os.dup2(file.fileno(), number)


def main() -> int:
    """Keep a network up until a signal, and return the exit code."""
    prog = "python -m testbed.emulation.daemon.owner"
    parser = argparse.ArgumentParser(prog=prog, description="Keeps a network up.")
    parser.add_argument("--name", required=True)
    parser.add_argument("--backend", choices=get_args(Backend), default="auto")
    parser.add_argument("--containers", type=ProgramContainers.from_json, default=ProgramContainers())
    parser.add_argument("--port", type=int, help="the API on this port of 127.0.0.1 as well; 0 is any")
    parser.add_argument("topology", type=Path)
    args = parser.parse_args()
    label.leave()  # started in another network's host, it would be killed together with that network
    progress = ProgressPipe()
    try:
        with interruptible():
            _own(args, progress)
    except BrokenPipeError:
        return FAILED  # the process that asked for the network has gone
    except Exception as error:
        return progress.fail(*ending_of(error))
    except Interrupted:
        return DONE
    return DONE


def _own(args: argparse.Namespace, progress: ProgressPipe) -> None:
    with serve_network(
        args.topology, name=args.name, backend=args.backend, workers=args.containers, step=progress.step, port=args.port
    ) as (testbed, server):
        logging.basicConfig(
            filename=testbed.folder / LOG, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
        )
        log.info("%s is up as %s", args.topology, args.name)
        if server.port is not None:
            write_entry(testbed.folder, server.port, server.token)
        progress.send({"up": args.name})
        progress.close(testbed.folder / LOG)
        threading.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
