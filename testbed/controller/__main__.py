"""The controller as a process of its own: `python -m testbed.controller --socket S --admin A --spec F --out DIR`.

Prints to standard error; ends with 0 on SIGTERM or SIGINT, and with 2 when the spec can't be used. It stays after
the run's end, so that the run can read its last state, and dies with the process (thread) that started it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import logging
import signal
import socket
import sys
from collections.abc import Generator
from pathlib import Path

import uvicorn

from testbed.controller.admin import make_app
from testbed.controller.service import Controller
from testbed.controller.spec import ControllerSpec, load_spec
from testbed.planning import PolicyError

PR_SET_PDEATHSIG = 1


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are ours: the members are told first."""
        yield


def main() -> int:
    """Run until a signal; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m testbed.controller", description="One run's controller.")
    parser.add_argument("--socket", type=Path, required=True, help="Unix socket for members")
    parser.add_argument("--admin", type=Path, required=True, help="Unix socket for the admin side")
    parser.add_argument("--http", type=int, metavar="PORT", help="the admin side on 127.0.0.1 as well")
    parser.add_argument("--spec", type=Path, required=True, help="the controller's spec, JSON")
    parser.add_argument("--out", type=Path, required=True, help="the run's directory")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        spec = load_spec(args.spec)
    except (OSError, ValueError) as error:
        print(f"controller: {args.spec}: {error}", file=sys.stderr)
        return 2
    try:
        asyncio.run(_serve(spec, args))
    except (OSError, PolicyError) as error:
        print(f"controller: {error}", file=sys.stderr)
        return 2
    return 0


async def _serve(spec: ControllerSpec, args: argparse.Namespace) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    sockets = [_unix_socket(args.admin)]
    if args.http is not None:
        sockets.append(socket.create_server(("127.0.0.1", args.http)))
    controller = Controller(spec, args.socket, args.out)
    config = uvicorn.Config(make_app(controller), lifespan="off", log_level="warning", timeout_graceful_shutdown=1)
    server = _Server(config)
    try:
        await controller.start()
        serving = asyncio.create_task(server.serve(sockets))
        await ended.wait()
        await controller.close()
        server.should_exit = True
        await serving
    finally:
        args.admin.unlink(missing_ok=True)


def _unix_socket(path: Path) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    path.chmod(0o600)
    return listening


if __name__ == "__main__":
    sys.exit(main())
