"""How a run is steered while it trains: by its file, and by people over its API."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from testbed.api.entry import show_in_browser, write_entry
from testbed.api.server import ApiServer, PortTaken
from testbed.controller.client import ControllerClient
from testbed.emulation.daemon.discovery import RUN_SOCKET
from testbed.emulation.testbed import Testbed
from testbed.run.changes import Changes, WorkerPrograms
from testbed.run.errors import CannotRun
from testbed.run.live import LiveRun
from testbed.run.loop_executor import LoopExecutor
from testbed.run.script import Script
from testbed.run.story import Story
from testbed.spec.experiment import Experiment


class Steering:
    """Plays the experiment's events, and answers people while it is entered; what they ask for is done in `wait`, in
    the thread of whoever calls that."""

    def __init__(
        self,
        experiment: Experiment,
        testbed: Testbed,
        story: Story,
        before_routes: Callable[[set[str]], None],
        controller: ControllerClient | None = None,
        workers: WorkerPrograms | None = None,
    ) -> None:
        """Without a `controller` and `workers`, members are not ours. `before_routes` is as for Changes."""
        self.changes = Changes(experiment, testbed, controller, workers, story.happened, before_routes)
        self._script = Script(experiment, self.changes)
        self._executor = LoopExecutor()
        self._run = LiveRun(testbed, self.changes, story, self._executor, controller)
        self._story = story
        self._folder = testbed.folder

    def __enter__(self) -> Self:
        """CannotRun where the port that the display's door is to be at is taken."""
        display = self._story.display
        port = None if display.door is None else display.door.port
        try:
            self._server = ApiServer(self._run, self._folder / RUN_SOCKET, port)
        except PortTaken as error:
            raise CannotRun(str(error)) from error
        self._server.__enter__()
        self._story.announce = self._server.announce
        if display.door is not None and self._server.port is not None:
            page = write_entry(self._folder, self._server.port, self._server.token)
            display.say(show_in_browser(page, display.door))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown()
        self._server.__exit__(kind, error, trace)

    def wait(self, seconds: float) -> None:
        """Do what people ask for until so many seconds are over."""
        self._executor.wait(seconds)

    def play(self, elapsed_s: float, round_: int) -> None:
        """Make the file's events happen that are due; see Script."""
        self._script.play(elapsed_s, round_)

    @property
    def missed(self) -> list[str]:
        """The file's events that have not happened."""
        return self._script.waiting
