"""The requests to a network that is up or to a run, one class each, and the refusal of a request.

A request is decoded here, from HTTP or from the JSON of another process, and carried as a value to its executor. A new
request is a class here and a case in its executor: `NetworkSubject` for a network, `Changes` for a run, `Coordinator`
for the controller.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, StrictBool, field_validator

from testbed.api.models import ApiModel, LinkPatch

#: HTTP status codes. The request names something that does not exist.
MISSING = 404
#: The request is not possible for this kind of subject, or not now.
NOT_HERE = 409
#: The link has changed since the tag of the request.
STALE = 412
#: A field of the request is wrong.
WRONG = 422
#: The body is not JSON.
UNREADABLE = 400
#: The request is valid, but could not be carried out.
FAILED = 500
#: This machine or its Docker engine can't carry out the request.
CANNOT = 503


class ApiProblem(Exception):
    """A request was not carried out, with its HTTP status; the text says why, and what to write instead."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


#: The refusal of a request about members by a network on which no experiment runs.
NOTHING_TRAINS = "no experiment runs on this network: {} the members of an experiment"
#: The refusal of a request about a worker's program by such a network.
NOT_OURS = "no experiment runs in these workers; end a program where you started it"


class Request(ApiModel):
    """A request. Processes exchange it as JSON: `{"request": "KillWorker", "worker": "paris-w0"}`."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, with the class's name as `request`."""
        return {"request": type(self).__name__, **self.model_dump(mode="json", exclude_unset=True)}


class HttpRequest(Request):
    """A request that comes over HTTP. Its path names all fields of the request, or none: then the body has them."""

    #: The HTTP method, and the path below /api/v1.
    ROUTE: ClassVar[tuple[str, str]]
    #: The refusal by a network on which no experiment runs.
    REFUSED: ClassVar[str] = NOT_OURS


class ChangeLinks(HttpRequest):
    """Change the values of links, by name: of all of them, or of none if a change is refused."""

    ROUTE = ("PATCH", "/links")

    links: dict[str, LinkPatch] = Field(description="New values by link.")


class SwapNetwork(HttpRequest):
    """Replace the network by that of another topology file on this machine; what both have keeps its connections."""

    ROUTE = ("PUT", "/network")

    file: Path = Field(description="Absolute path of the topology file.", json_schema_extra={"pattern": "^/"})

    @field_validator("file")
    @classmethod
    def _absolute(cls, file: Path) -> Path:
        if not file.is_absolute():
            raise ValueError(f"{file} is a relative path; write an absolute one")
        return file


class PauseReplay(HttpRequest):
    """Pause the replay of traces, or continue it from where it was paused."""

    ROUTE = ("PUT", "/replay")

    paused: StrictBool = Field(description="true pauses the replay, false continues it.")


class AddWorker(HttpRequest):
    """Start one more worker at a site, as the site declares its workers. Return its name and address."""

    ROUTE = ("POST", "/workers")

    site: str = Field(min_length=1, description="Name of the site.")


class KillWorker(HttpRequest):
    """Kill a worker's program at once, as a crash would."""

    ROUTE = ("POST", "/workers/{worker}/kill")

    worker: str


class RestartWorker(HttpRequest):
    """Start a worker's program again."""

    ROUTE = ("POST", "/workers/{worker}/restart")

    worker: str


class ForcePolicy(HttpRequest):
    """Plan by another policy from now on, and put its plan in force even if it saves nothing."""

    ROUTE = ("PUT", "/policy")
    REFUSED = NOTHING_TRAINS.format("a policy plans for")

    policy: str = Field(min_length=1, description="Name of the policy, such as netstorm.")
    options: dict[str, Any] = Field(default_factory=dict, description="The policy's options, such as `roots: 1`.")


class ForcePlan(HttpRequest):
    """Put a plan in force, in the form of a run's `plans/` or of `GET /plans`; members and codecs must be the run's."""

    ROUTE = ("PUT", "/plan")
    REFUSED = NOTHING_TRAINS.format("a plan is for")

    plan: dict[str, Any] = Field(description="The plan as JSON.")


class ChangeGraph(HttpRequest):
    """Change the kind of communication graph of a gossip run."""

    ROUTE = ("PUT", "/graph")
    REFUSED = NOTHING_TRAINS.format("a graph connects")

    kind: str = Field(min_length=1, description="Kind of graph, such as ring.")


class RecordLaunch(HttpRequest):
    """Record in the events of a network that is up that a command was started on its workers, or has ended there."""

    ROUTE = ("POST", "/launches")

    kind: Literal["launch", "launch ended"] = Field(description="What happened.")
    target: str = Field(min_length=1, max_length=1000, description="The launch, and its command.")


class Stop(HttpRequest):
    """Stop the run, or take the network down."""

    ROUTE = ("POST", "/stop")

    reason: str = Field("stopped by hand", description="Reason that the run records.")


#: All requests that come over HTTP.
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
    RecordLaunch,
    Stop,
)


def request_from_json(value: Any, known: Iterable[type[Request]] = REQUESTS) -> Request:
    """Return the request that a JSON value holds, one of the classes `known`.

    Raises:
        ValueError: The value is not a request of these classes. pydantic's ValidationError is a ValueError.
    """
    kinds = {kind.__name__: kind for kind in known}
    kind = kinds.get(str(value.get("request"))) if isinstance(value, dict) else None
    if kind is None:
        raise ValueError(f"unknown request; write one of {', '.join(kinds)} as `request`")
    return kind.model_validate({name: field for name, field in value.items() if name != "request"})
