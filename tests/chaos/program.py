"""`testbed run` with members that keep records: `python -m tests.chaos.program [--containers] run EXPERIMENT`.

Only the members' program differs from the product's and, without `--containers`, what it runs in. `--bug NAME` plants
one of planted.py's bugs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> None:
    """Run `testbed` with the recording members."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.program", description=__doc__, allow_abbrev=False)
    parser.add_argument("--containers", action="store_true", help="members in containers, not in processes")
    parser.add_argument("--bug", metavar="NAME", help="one of planted.py")
    parser.add_argument("--seed", type=int, default=0, help="the planted bug's")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="the product's own")
    arguments = parser.parse_args()

    from testbed import cli
    from testbed.emulation.containers import engine
    from testbed.emulation.containers.fleet import Fleet
    from testbed.run.run import Run
    from tests.chaos.planted import Bug, wrap
    from tests.chaos.workers import RECORDING, ProcessFleet, RecordingFleet

    bug = Bug(arguments.bug, arguments.seed) if arguments.bug else None

    def recording(_: object, run: Run, network: str, control: Path) -> Fleet:
        """Return a fleet whose members keep records."""
        if arguments.containers:
            return RecordingFleet.connected(network, control)
        logs = run.directory.path / "logs"
        return ProcessFleet(engine.connect(), network, control, logs, RECORDING, bug=bug)

    wrap(Run, "fleet", recording)
    if bug is not None:
        bug.plant_in_owner()
    sys.argv = ["testbed", *arguments.words]
    cli.main()


if __name__ == "__main__":
    main()
