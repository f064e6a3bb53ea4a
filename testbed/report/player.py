"""A run that is over, as the API's subject: it is as it was, and nothing can be asked of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from testbed.api.models import LinkHistory, NetworkStatus
from testbed.api.problem import NOT_HERE, ApiProblem
from testbed.api.requests import Request
from testbed.api.stream import State
from testbed.api.subject import Subject
from testbed.report.recording import recording_of


class RecordedRun(Subject):
    """Of the run in a directory, which is read as by `recording_of`. NotARun when there is none."""

    def __init__(self, path: Path, forks: bool = False) -> None:
        self.executor = ThreadPoolExecutor(1)
        recording = recording_of(path, forks)
        self._known = {name: recording[name] for name in ("network", "sites", "hosts")}
        self._recording = msgspec.json.encode(recording)

    def state(self) -> State:
        return self._known | {"links": {}}

    def status(self) -> NetworkStatus:
        return NetworkStatus(**self._known["network"], hosts={}, links={})

    def recording(self) -> bytes:
        return self._recording

    def history(self, since: int | None) -> LinkHistory:
        raise self._over()

    def do(self, request: Request) -> dict[str, Any]:
        raise self._over()

    def _over(self) -> ApiProblem:
        return ApiProblem(NOT_HERE, f"{self._known['network']['name']} is a recording: it is as it was")
