"""A finished run as a subject of the API: it can be read, and every change is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from testbed.api.models import LinkHistory, NetworkStatus
from testbed.api.requests import NOT_HERE, ApiProblem, Request
from testbed.api.stream import State
from testbed.api.subject import Subject
from testbed.report.recording import recording_of


class RecordedRun(Subject):
    """The recording of a run's directory; see `recording_of` for its arguments and errors."""

    def __init__(self, path: Path, forks: bool = False) -> None:
        self.executor = ThreadPoolExecutor(1)
        recording = recording_of(path, forks)
        self._known = {name: recording[name] for name in ("network", "sites", "hosts")}
        self._recording = msgspec.json.encode(recording)

    def state(self) -> State:
        """Return the network, its sites and hosts; a recording has no live links."""
        return self._known | {"links": {}}

    def status(self) -> NetworkStatus:
        """Return the run's overview, without hosts and links."""
        return NetworkStatus(**self._known["network"], hosts={}, links={})

    def recording(self) -> bytes:
        """Return the recording as JSON."""
        return self._recording

    def history(self, since: int | None) -> LinkHistory:
        """Refuse: the recording itself has the states of links."""
        raise self._refusal()

    def do(self, request: Request) -> dict[str, Any]:
        """Refuse: a recording cannot be changed."""
        raise self._refusal()

    def _refusal(self) -> ApiProblem:
        return ApiProblem(NOT_HERE, f"{self._known['network']['name']} is a recording and cannot be changed")
