"""The verb that plays a run that is over."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.console import Port, out
from testbed.emulation.interrupt import Interrupted, interruptible


def view(
    run: Annotated[Path, typer.Argument(help="a run's directory, such as runs/latest")], port: Port = None
) -> None:
    """Show a run that is over on a page that plays it at any speed, until Ctrl-C."""
    from testbed.api.entry import ApiPort, show_in_browser, write_entry
    from testbed.api.server import ApiServer
    from testbed.report.recorded_run import RecordedRun

    with tempfile.TemporaryDirectory(prefix="testbed-view-") as folder:
        try:
            with (
                ApiServer(RecordedRun(run, forks=True), Path(folder) / "view.sock", port or 0) as server,
                interruptible(),
            ):
                assert server.port is not None
                page = write_entry(Path(folder), server.port, server.token)
                out.print(show_in_browser(page, ApiPort(server.port, shown=True)))
                server.join()
        except Interrupted:
            return


def register(app: typer.Typer) -> None:
    """Give the program this verb."""
    app.command()(view)
