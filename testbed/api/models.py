"""What the API says and takes, by name. Times are Unix seconds unless a name says otherwise, rates bit/s of frames."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, StrictBool

#: What happens in a run happens because its file says so, or because a person asked for it.
By = Literal["file", "hand"]


class ApiModel(BaseModel):
    """A value that has these fields and no others."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LinkValues(ApiModel):
    """A link's values; None where nothing says any."""

    rate_bps: float | None = None
    delay_s: float | None = None
    jitter_s: float | None = None
    loss: float | None = None


class LinkResource(ApiModel):
    """A directed link: the state in force, what its file `declared` (its trace, if it is `replayed`, moves that), and
    what was `changed` over both since. `delay_s` is one way, `loss` a probability.

    The `tag` is another one whenever what was asked of the link is: see `LinkPatch`.
    """

    source: str
    target: str
    rate_bps: float
    delay_s: float
    jitter_s: float
    loss: float
    bursts: dict[str, float] | None
    reorder: bool
    up: bool
    queue_bytes: int
    replayed: bool
    declared: LinkValues
    changed: LinkValues
    tag: str


class TrafficResource(ApiModel):
    """What a link has carried and dropped since it was made, and what waits in it now."""

    packets: int
    bytes: int
    dropped_queue: int
    dropped_loss: int
    backlog_bytes: int


class LinkStatus(LinkResource, TrafficResource):
    """Both."""


class SiteResource(ApiModel):
    """A site: what it is called in print, its latitude and longitude in degrees if known, and its workers."""

    label: str | None
    position: tuple[float, float] | None
    workers: list[str]


class HostResource(ApiModel):
    """A worker or a router. `pid` is the process or thread that holds its network namespace, `start_ticks` when that
    started."""

    kind: Literal["worker", "router"]
    site: str
    address: str
    pid: int
    start_ticks: int | None
    running: bool


class ReplayResource(ApiModel):
    """The replay of traces: how far it is, of how many links, how late it was lately (None where nothing is replayed,
    or nobody looked), and whether it is held."""

    elapsed_s: float
    links: int
    late_ms_p99: float | None
    paused: bool


class Overview(ApiModel):
    """What runs. `failure` says why links are dead or traces stand still; None while all is well."""

    kind: Literal["network", "run", "recording", "controller"]
    name: str
    topology: str
    file: str
    backend: str
    switch: str
    transport: dict[str, Any]
    pid: int
    failure: str | None
    replay: ReplayResource


class NetworkStatus(Overview):
    """What runs, with its hosts and links."""

    hosts: dict[str, HostResource]
    links: dict[str, LinkStatus]


class EventResource(ApiModel):
    """Something that happened; `by` hand, where a person asked for it.

    A `change` of a link has all values that are in force over its file or trace since. A `drop` or a `rise` is a large
    change of a rate by a trace, on a link in use.
    """

    at_s: float
    kind: str
    target: str
    by: Literal["hand"] | None = None
    changed: LinkValues | None = None
    before_bps: float | None = None
    after_bps: float | None = None


class LinkPatch(ApiModel):
    """Other values for a directed link, as a user writes them: `rate: 5mbit`, `delay: 20ms`, `loss: 0.1%`.

    What is left out stays; null is as the link's file or trace has it again. `up` takes the physical pair up or down.
    With a `tag`, nothing is done unless it is the link's own still; in a request for one link it is the `If-Match`.
    """

    rate: str | None = None
    delay: str | None = None
    jitter: str | None = None
    loss: str | None = None
    up: StrictBool | None = None
    tag: str | None = None


class RequestResult(ApiModel):
    """The answer to a request that was carried out; `result` has what there is to say of it."""

    result: dict[str, Any] = {}


class LinkHistory(ApiModel):
    """States that links came to have, and the `count` to ask with next."""

    states: list[dict[str, Any]]
    count: int


class ProblemAnswer(ApiModel):
    """Why what was asked was not done, and what to write instead."""

    detail: str
