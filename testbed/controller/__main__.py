"""The controller of one run as a process: `python -m testbed.controller --sockets D --owner S --spec F --out DIR`.

Prints to standard error. Ends with 0 on SIGTERM or SIGINT, with 2 when the spec can't be used, and with 3 when this
machine lacks something, such as a C compiler or a high enough limit of open files. The process stays after the end of
training, so that its owner can read the last state. It gets SIGTERM when the thread that started it ends. With
`--parent`, the number of that thread's process, it also ends with 0 if that process died while the controller was
starting.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import logging
import os
import signal
import sys
from pathlib import Path

from testbed.compiler import CompilerError
from testbed.controller.model.spec import load_spec
from testbed.controller.serve import serve_owner
from testbed.errors import ending_of
from testbed.planning import PolicyError
from testbed.planning.events import load as load_simulator

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Serve until a signal, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m testbed.controller", description="One run's controller.")
    parser.add_argument("--sockets", type=Path, required=True, help="folder of the members' Unix sockets")
    parser.add_argument("--owner", type=Path, required=True, help="Unix socket for the run that owns the controller")
    parser.add_argument("--spec", type=Path, required=True, help="the controller's spec, JSON")
    parser.add_argument("--out", type=Path, required=True, help="the run's directory")
    parser.add_argument("--parent", type=int, help="the process that starts the controller, which ends with it")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if args.parent not in (None, os.getppid()):
        return 0  # the kernel sends no signal for a parent that died during the imports, which take 2.5 s
    try:
        spec = load_spec(args.spec)
    except (OSError, ValueError) as error:
        print(f"controller: {args.spec}: {error}", file=sys.stderr)
        return 2
    try:
        load_simulator()
        asyncio.run(serve_owner(spec, args.sockets, args.owner, args.out))
    except (OSError, PolicyError, CompilerError) as error:
        code, text = ending_of(error)
        print(f"controller: {text}", file=sys.stderr)
        return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
