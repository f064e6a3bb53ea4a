"""The process that keeps a network up: `python -m testbed.emulation.daemon.owner --name N … TOPOLOGY`.

It belongs to no terminal. While it builds the network, it reports progress on its standard output, one JSON object a
line: `{"step": title}`, `{"done": title}`, and finally `{"up": name}`, or `{"failed": text, "code": exit code}` when
nothing is left of what it had begun. If the reader of that output has gone, it removes everything. Once the network is
up, it answers requests over the API's socket until SIGTERM, and logs to `owner.log` in the network's state folder.
`bring_up` starts it and follows its reports. `prompt_on` keeps a network up in this process, behind Mininet's prompt.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, get_args

from mininet.cli import CLI
from mininet.log import error as show_error
from mininet.log import setLogLevel

from testbed.api.entry import PAGE, ApiPort, show_in_browser, write_entry
from testbed.emulation import label
from testbed.emulation.containers.fleet import ProgramContainers
from testbed.emulation.daemon.subject import serve_network
from testbed.emulation.errors import ending_of
from testbed.emulation.interrupt import Interrupted, interruptible
from testbed.emulation.network.network import Network
from testbed.emulation.process import how_it_ended
from testbed.emulation.testbed import Backend, Step
from testbed.errors import FAILED, MOST_QUOTED, written_aside
from testbed.spec.topology import Topology

DONE = 0

LOG = "owner.log"

log = logging.getLogger(__name__)


# Its starter ----------------------------------------------------------------------------------------------------------


class StartupError(RuntimeError):
    """The network did not come up, and nothing of it is left. `exit_code` says whose fault it was."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def bring_up(
    name: str,
    topology: Path,
    backend: Backend,
    containers: ProgramContainers,
    step: Step,
    api_port: ApiPort | None = None,
) -> str:
    """Bring a network up in the background, and return a line about its page (empty without an `api_port`).

    With an `api_port`, the API is also served on a port of this machine, and its page is shown in a browser. If it is
    interrupted, it waits until the network has been removed.

    Raises:
        StartupError: The network did not come up.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as complaints:
        owner = subprocess.Popen(
            [
                *(sys.executable, "-m", "testbed.emulation.daemon.owner"),
                *("--name", name, "--backend", backend, "--containers", containers.to_json(), str(topology)),
                *(() if api_port is None else ("--port", str(api_port.port))),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # Not this process's stderr: the owner's children keep it open, and a pipe's reader would wait for them.
            stderr=complaints,
            # Without the label of another network, in whose host this may run, and with which it would be killed.
            env={name: value for name, value in os.environ.items() if name != label.ENVIRONMENT},
            text=True,
            start_new_session=True,  # it outlives this terminal, and does not get its Ctrl-C
        )
        assert owner.stdout is not None
        try:
            with owner.stdout as words:
                _follow(words, step)
        except EOFError:
            complaints.seek(0)
            raise StartupError(_broken_off(how_it_ended(owner.wait()), complaints.read()), FAILED) from None
        except BaseException:
            owner.terminate()
            owner.wait()
            raise
    return show_in_browser(label.state_folder(name) / PAGE, api_port) if api_port else ""


def _broken_off(ended: str, complained: str) -> str:
    text = f"the process that builds the network {ended} before the network was up"
    if not complained.strip():
        return text
    last = complained.strip().splitlines()[-1][:MOST_QUOTED]
    with suppress(OSError):  # the disk may be full
        return f"{text}: {last}; its whole output is in {written_aside(complained)}"
    return f"{text}: {last}"


def _follow(words: IO[str], step: Step) -> None:
    while "up" not in (word := _next(words)):
        with step(word["step"]):
            _next(words)  # the step is done


def _next(words: IO[str]) -> dict[str, Any]:
    line = words.readline()
    if not line:
        raise EOFError
    word: dict[str, Any] = json.loads(line)
    if "failed" in word:
        raise StartupError(word["failed"], word["code"])
    return word


# The process ----------------------------------------------------------------------------------------------------------


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
        """Report the begin and the end of a step."""
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


# In a terminal instead ------------------------------------------------------------------------------------------------


#: Two commands at the prompt that measure the throughput of a TCP connection.
USES_IPERF3 = "A iperf3 --server --one-off --daemon, then B iperf3 --client A"


class Prompt(CLI):
    """Mininet's prompt, for host names with dashes: Mininet reads `paris-w0 ping tokyo-w0` as a command `paris`.

    It runs commands until `exit` or the end of its input.
    """

    identchars = CLI.identchars + "-"

    def do_iperf(self, line: str) -> None:
        """Refuse Mininet's command, which kills every `iperf` process of this machine."""
        show_error(
            f"iperf: Mininet's command kills every iperf process of this machine\n    write instead: {USES_IPERF3}\n"
        )

    do_iperfudp = do_iperf

    def __init__(self, network: Network) -> None:
        setLogLevel("info")  # `nodes`, `net` and `dump` print at this level
        # Ctrl-C ends the command that runs at the prompt, not the network.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            super().__init__(network)
        finally:
            signal.signal(signal.SIGINT, before)


def prompt_on(name: str, topology: Topology, backend: Backend, containers: ProgramContainers, step: Step) -> None:
    """Bring a network up with these containers, run the prompt, and remove the network at the prompt's end.

    Meanwhile the network answers API requests as any other. Raises what `serve_network` raises.
    """
    with serve_network(topology, name=name, backend=backend, workers=containers, step=step) as (testbed, _):
        Prompt(testbed.network)


if __name__ == "__main__":
    sys.exit(main())
