"""Star: all members send to parameter servers, which send the mean back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.plan import Plan, Tree
from testbed.planning.cost import CostModel
from testbed.planning.policy import Policy, PolicyError, check_choice, check_member, check_whole, register
from testbed.planning.view import View

#: Elements of AlexNet's arrays, weights and biases layer by layer (Krizhevsky, Sutskever and Hinton 2012, in the
#: one-tower form with 1,000 classes): 61 M in all, three in five of them in one array.
ALEXNET = (
    *(64 * 3 * 11 * 11, 64),
    *(192 * 64 * 5 * 5, 192),
    *(384 * 192 * 3 * 3, 384),
    *(256 * 384 * 3 * 3, 256),
    *(256 * 256 * 3 * 3, 256),
    *(4096 * 9216, 4096),
    *(4096 * 4096, 4096),
    *(1000 * 4096, 1000),
)

#: Elements from which MXNet's kvstore cuts an array over all servers; a smaller one is whole on one server.
BIG_ARRAY = 1_000_000

#: The prime by which MXNet spreads whole arrays over servers.
SPREAD = 9973

#: Places of the servers, by the predicted time of the star with one server.
PLACEMENTS = ("best", "mean", "worst")

#: Named lists of keys. `overlapped` has no keys: each chunk is broadcast once it is reduced, so pull overlaps push.
KEYS = {"overlapped": (), "one": (1,), "alexnet": ALEXNET}


def _is_size(value: object) -> bool:
    return isinstance(value, int) and value > 0


@register("star")
@dataclass(frozen=True)
class Star(Policy):
    """Parameter servers (MXNet's kvstore `dist_sync`; Li et al., OSDI 2014): parent(m) = server in both directions.

    Arrays go to servers by MXNet's rule (`keys_of_servers`), by their own sizes whatever the model's size is. Members
    that are not neighbours are reached over routed paths, which do not aggregate. O(n² · route length) to place the
    servers.
    """

    #: The number of servers, or `all`.
    servers: int | str = 1
    #: The member that is the only server; by default it is chosen by `placement`.
    server: str | None = None
    #: The members with the `best` or the `worst` predicted stars of one server, or those nearest to the `mean` of all.
    placement: str = "best"
    #: `one`: the model is pulled when all have pushed it. `alexnet`: keys in the proportions of AlexNet's arrays. Or a
    #: list of arrays' elements, such as the model's layers. `overlapped` [ours]: a chunk is sent back at once.
    keys: str | Sequence[int] = "overlapped"

    def __post_init__(self) -> None:
        if self.servers != "all":
            check_whole(self, "servers", self.servers, least=1)
        check_choice(self, "placement", self.placement, PLACEMENTS)
        if isinstance(self.keys, str):
            check_choice(self, "keys", self.keys, KEYS)
        elif not isinstance(self.keys, Sequence) or not self.keys or any(not _is_size(size) for size in self.keys):
            text = f"star: keys {self.keys!r} must list the elements of each array: whole numbers above 0"
            raise PolicyError(text, field="keys", given=self.keys)
        if self.server is not None and self.servers != 1:
            text = "star: `server` names the only server; leave out `servers`, or `server`"
            raise PolicyError(text, field="servers", given=self.servers)

    def plan(self, view: View) -> Plan:
        """Return a star around each server, with the share of the arrays that the server holds."""
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
            raise PolicyError(
                f"star: it needs {count} members with edges to and from all others, and the view has {len(reachable)}"
            )
        mean = sum(seconds[name] for name in reachable) / len(reachable)
        rank = {
            "best": seconds.__getitem__,
            "worst": lambda name: -seconds[name],
            "mean": lambda name: abs(seconds[name] - mean),
        }[self.placement]
        return tuple(sorted(reachable, key=rank)[:count])


def star(members: tuple[str, ...], server: str, share: float = 1.0, keys: tuple[float, ...] = ()) -> Tree:
    """Return the tree in which all members send to `server` and receive the mean from it."""
    parents = {member: server for member in members if member != server}
    return Tree(server, parents, parents, share, keys)


def keys_of_servers(arrays: Sequence[int], servers: int) -> list[list[float]]:
    """Return the sizes of the keys that each server holds, in the arrays' order, as MXNet's kvstore_dist places them.

    Array number k is on server (k · 9973) mod servers; an array of at least BIG_ARRAY elements is cut evenly.
    """
    held: list[list[float]] = [[] for _ in range(servers)]
    for number, size in enumerate(arrays):
        if size >= BIG_ARRAY:
            for keys in held:
                keys.append(size / servers)
        else:
            held[number * SPREAD % servers].append(float(size))
    return held
