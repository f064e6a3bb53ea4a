"""One worker: joins the run at the control socket, trains by its job, and leaves.

Exit codes: 0 done, or stopped by the controller; 1 the worker could not go on (the reason is on stderr, and is sent to
the controller); 143 ended by SIGTERM.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import signal
import sys
from pathlib import Path

TERMINATED = 128 + signal.SIGTERM


def main() -> int:
    """Parse the arguments and train; join again if the others went on without this member. Return the exit code."""
    # Before all else: a container's first process ignores a signal without a handler, and importing PyTorch takes
    # seconds.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    faulthandler.register(signal.SIGUSR1)  # prints the threads' stacks, to find why a worker hangs
    parser = argparse.ArgumentParser(prog="testbed.worker", description=__doc__, allow_abbrev=False)
    parser.add_argument("--name", required=True, help="this member's name in the plans")
    parser.add_argument("--control", required=True, help="the controller's socket: unix:/path or tcp:host:port")
    parser.add_argument("--address", default="", help="IPv4 address to listen on; else the first that is not loopback")
    parser.add_argument("--data", type=Path, default=Path("/usr/share/testbed"), help="the folder of the data sets")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds to wait for other members")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="over TCP: this member's own token")
    parser.add_argument("--tls", type=Path, metavar="DIR", help="over TCP: certificate folder (docs/machines.md)")
    arguments = parser.parse_args()

    # Imported objects stay, and collecting garbage among them takes an eighth of PyTorch's processor time. The loop
    # loads PyTorch; `sync` loads it only when one of its names is first used.
    gc.disable()
    import testbed.worker.loop  # noqa: F401
    from testbed import sync

    gc.freeze()
    gc.enable()
    try:
        while _train(arguments):
            pass
    except (sync.SyncError, ValueError, OSError) as error:
        print(f"{arguments.name}: {error}", file=sys.stderr)
        return 1
    return 0


def _train(arguments: argparse.Namespace) -> bool:
    """Join and train. Return True if this member is to join again: the controller stopped it, and the others go on."""
    from testbed import sync
    from testbed.sockets import Tls
    from testbed.sync.rendezvous import rendezvous
    from testbed.worker.learner import device
    from testbed.worker.loop import work_at

    try:
        # The token is in a file, since every user of the machine can read arguments.
        token = arguments.token_file.read_text().strip() if arguments.token_file else ""
        tls = Tls(arguments.tls) if arguments.tls else None
        found, patience_s = device(), arguments.patience
        joined = rendezvous(arguments.control, arguments.name, arguments.address, found, patience_s, token, tls)
        work_at(joined, arguments.data)
    except sync.Stopped as stopped:
        print(f"{arguments.name}: asked to stop: {stopped}", file=sys.stderr)
        return stopped.again
    return False


if __name__ == "__main__":
    sys.exit(main())
