"""Star: everybody sends to servers, which send the mean back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.plan import Plan, Tree
from testbed.planning.cost import CostModel
from testbed.planning.keys import ALEXNET, keys_of_servers
from testbed.planning.policy import Policy, PolicyError, check_choice, check_member, check_whole, register
from testbed.planning.view import View

#: Where servers stand, by the predicted time of the star with one server.
PLACEMENTS = ("best", "mean", "worst")

#: Named lists of keys; `overlapped` has none: each chunk is broadcast when it is reduced, pull overlapping push.
KEYS = {"overlapped": (), "one": (1,), "alexnet": ALEXNET}


@register("star")
@dataclass(frozen=True)
class Star(Policy):
    """Parameter servers (MXNet's kvstore `dist_sync`; Li et al., OSDI 2014): parent(m) = server in both directions.

    `servers`: how many, 1 by default, or `all`. `placement` `best`, `mean` or `worst`: the members as the cost model
    orders the stars with one server; the mean is the one whose time is nearest to the mean of all. `server` names it
    instead. `keys`: `one` (the model is pulled when all have pushed it), `alexnet` (keys in the proportions of
    AlexNet's arrays), a list of arrays' elements, such as the model's, layer by layer; or `overlapped`, ours, in which
    a chunk is sent back at once. Arrays go to servers by MXNet's rule (`keys_of_servers`), at their own sizes
    whatever the model's is. Members that are no neighbours are reached over routed paths, which do not aggregate.
    O(n² · route length) to place the servers.
    """

    servers: int | str = 1
    server: str | None = None
    placement: str = "best"
    keys: str | Sequence[int] = "overlapped"

    def __post_init__(self) -> None:
        if self.servers != "all":
            check_whole(self, "servers", self.servers, least=1)
        check_choice(self, "placement", self.placement, PLACEMENTS)
        if isinstance(self.keys, str):
            check_choice(self, "keys", self.keys, KEYS)
        elif not self.keys or not all(isinstance(size, int) and size > 0 for size in self.keys):
            raise PolicyError(
                f"star: keys {self.keys!r} must be elements of arrays: whole numbers above 0",
                field="keys",
                given=self.keys,
            )
        if self.server is not None and self.servers != 1:
            raise PolicyError(
                "star: server names the only one; leave out `servers`, or name none",
                field="servers",
                given=self.servers,
            )

    def plan(self, view: View) -> Plan:
        names = self._placed(view)
        arrays = KEYS[self.keys] if isinstance(self.keys, str) else tuple(self.keys)
        if not arrays:
            return self._plan(view, [star(view.names, name, 1 / len(names)) for name in names])
        held = keys_of_servers(arrays, len(names))
        total = sum(arrays)
        return self._plan(
            view,
            [
                star(view.names, name, sum(keys) / total, tuple(key / sum(keys) for key in keys))
                for name, keys in zip(names, held, strict=True)
                if keys
            ],
        )

    def _placed(self, view: View) -> tuple[str, ...]:
        if self.server is not None:
            check_member(self, "server", self.server, view)
            return (self.server,)
        count = len(view.names) if self.servers == "all" else int(self.servers)
        if count > len(view.names):
            raise PolicyError(
                f"star: {count} servers are more than the {len(view.names)} members", field="servers", given=count
            )
        model = CostModel(view)
        seconds = {name: model.predict(Plan(0, view.names, (star(view.names, name),))).seconds for name in view.names}
        reachable = [name for name in view.names if seconds[name] < float("inf")]
        if len(reachable) < count:
            raise PolicyError(f"star: {len(reachable)} of the members have edges to and from all others; needs {count}")
        mean = sum(seconds[name] for name in reachable) / len(reachable)
        rank = {
            "best": seconds.__getitem__,
            "worst": lambda name: -seconds[name],
            "mean": lambda name: abs(seconds[name] - mean),
        }[self.placement]
        return tuple(sorted(reachable, key=rank)[:count])


def star(members: tuple[str, ...], server: str, share: float = 1.0, keys: tuple[float, ...] = ()) -> Tree:
    """The star around `server`."""
    parents = {member: server for member in members if member != server}
    return Tree(server, parents, parents, share, keys)
