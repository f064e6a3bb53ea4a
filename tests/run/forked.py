"""`testbed run` with workers that are forked processes in the network's hosts: `python -m tests.run.forked run FILE`.

All is the product's own but what workers run in.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

WORKER = "testbed.worker.__main__"


def main() -> None:
    """As `testbed`'s own."""
    # Here: the server that forks workers imports this file once for each of them.
    from containers.digits import bake
    from testbed import cli
    from testbed.emulation.containers import engine
    from testbed.emulation.containers.fleet import Fleet
    from testbed.run.run import Run
    from tests.chaos.planted import wrap
    from tests.chaos.workers import ProcessFleet

    with TemporaryDirectory() as folder:
        bake(Path(folder) / "digits")

        def forked(_: object, run: Run, network: str, control: Path) -> Fleet:
            logs = run.directory.path / "logs"
            return ProcessFleet(engine.connect(), network, control, logs, WORKER, ("--data", folder))

        wrap(Run, "fleet", forked)
        sys.argv = ["testbed", *sys.argv[1:]]
        cli.main()


if __name__ == "__main__":
    main()
