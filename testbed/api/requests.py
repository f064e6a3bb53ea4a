"""What is asked of a run or of a network that is up: one class a request.

A request is decoded here, from HTTP or from the JSON of another process, and carried as a value to whoever does it. A
new request is a class here and a case in its executor: `NetworkSubject` of a network, `Changes` of a run, `Coordinator`
where the controller does it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, StrictBool, field_validator

from testbed.api.models import ApiModel, LinkPatch

#: What was asked names what is not there; cannot be done here; is of what has changed since; is wrong in itself.
MISSING, NOT_HERE, STALE, WRONG = 404, 409, 412, 422
#: What was sent is no JSON.
UNREADABLE = 400
#: It could not be done, though nothing was wrong with it.
FAILED = 500
#: This machine, or its Docker engine, can't do it.
CANNOT = 503


class ApiProblem(Exception):
    """What was asked was not done; the text says why, and what to write instead. `status` is HTTP's code for it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


#: Why a network without a run of ours refuses what is for members.
NOTHING_TRAINS = "nothing trains here: {} the members of an experiment"
#: Why it refuses what is for a worker's program.
NOT_OURS = "nothing of ours runs in these workers; what was started in one is its starter's to end"


class Request(ApiModel):
    """A request, which travels between processes as `{"request": "KillWorker", "worker": "paris-w0"}`."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON has them, with the class's name as `request`."""
        return {"request": type(self).__name__, **self.model_dump(mode="json", exclude_unset=True)}


class HttpRequest(Request):
    """A request that comes over HTTP: fields that the path names are in the path, the others are the body.

    Attributes:
        ROUTE: The HTTP method and the path below /api/v1.
        REFUSED: What a network answers whose workers run no program of ours.
    """

    ROUTE: ClassVar[tuple[str, str]]
    REFUSED: ClassVar[str] = NOT_OURS


class ChangeLinks(HttpRequest):
    """Change the values of links, by name: of all of them or, when something is wrong, of none."""

    ROUTE = ("PATCH", "/links")

    links: dict[str, LinkPatch]


class SwapNetwork(HttpRequest):
    """Go over to another network, by difference: that of a topology file on this machine, by its absolute path."""

    ROUTE = ("PUT", "/network")

    file: Path = Field(json_schema_extra={"pattern": "^/"})

    @field_validator("file")
    @classmethod
    def _absolute(cls, file: Path) -> Path:
        if not file.is_absolute():
            raise ValueError(f"{file} is relative, and nobody here knows to what; write an absolute path")
        return file


class PauseReplay(HttpRequest):
    """Hold the replay of traces, or let it go on from where it was held."""

    ROUTE = ("PUT", "/replay")

    paused: StrictBool


class AddWorker(HttpRequest):
    """Start one more worker at a site, as the site declares its workers. The answer has its name and its address."""

    ROUTE = ("POST", "/workers")

    site: str = Field(min_length=1)


class KillWorker(HttpRequest):
    """End a worker's program at once, as a crash would."""

    ROUTE = ("POST", "/workers/{worker}/kill")

    worker: str


class RestartWorker(HttpRequest):
    """Start a worker's program again."""

    ROUTE = ("POST", "/workers/{worker}/restart")

    worker: str


class ForcePolicy(HttpRequest):
    """Plan by a policy from now on; its plan comes into force whatever it saves."""

    ROUTE = ("PUT", "/policy")
    REFUSED = NOTHING_TRAINS.format("a policy plans for")

    policy: str = Field(min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)


class ForcePlan(HttpRequest):
    """Put one plan in force, as `GET /plans` and a run's `plans/` have it: its members are those of the run."""

    ROUTE = ("PUT", "/plan")
    REFUSED = NOTHING_TRAINS.format("a plan is for")

    plan: dict[str, Any]


class ChangeGraph(HttpRequest):
    """Go over to another kind of communication graph, where members gossip."""

    ROUTE = ("PUT", "/graph")
    REFUSED = NOTHING_TRAINS.format("a graph connects")

    kind: str = Field(min_length=1)


class Stop(HttpRequest):
    """End what runs."""

    ROUTE = ("POST", "/stop")

    reason: str = "stopped by hand"


#: The requests that come over HTTP.
REQUESTS: tuple[type[HttpRequest], ...] = (
    ChangeLinks,
    SwapNetwork,
    PauseReplay,
    AddWorker,
    KillWorker,
    RestartWorker,
    ForcePolicy,
    ForcePlan,
    ChangeGraph,
    Stop,
)


def request_from_json(value: Any, known: Iterable[type[Request]] = REQUESTS) -> Request:
    """Return the request that JSON holds.

    Raises:
        ValueError: The value is no request of these classes; pydantic's ValidationError is one.
    """
    kinds = {kind.__name__: kind for kind in known}
    kind = kinds.get(str(value.get("request"))) if isinstance(value, dict) else None
    if kind is None:
        raise ValueError(f"unknown request; write one of {', '.join(kinds)} as `request`")
    return kind.model_validate({name: field for name, field in value.items() if name != "request"})
