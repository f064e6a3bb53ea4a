"""Requests that change a network: checked before anything is done, carried out, and their failures as API problems."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from testbed.api.models import LinkPatch
from testbed.api.requests import CANNOT, FAILED, MISSING, NOT_HERE, STALE, WRONG, ApiProblem
from testbed.emulation.containers import engine
from testbed.emulation.daemon.status import tag_of
from testbed.emulation.errors import EmulationError, ending_of
from testbed.emulation.links.links import RequestedState
from testbed.emulation.testbed import Testbed
from testbed.link import link_ends, link_name, pair_name
from testbed.spec.errors import Fault, SpecError
from testbed.spec.event import LinkChange
from testbed.spec.load import holds
from testbed.spec.model import validate
from testbed.spec.topology import MAX_WORKERS

if TYPE_CHECKING:  # importing it needs Mininet, which `simulate` and `report` do without
    from testbed.emulation.network.network import Network

log = logging.getLogger(__name__)

#: The fields of a patch that are values of the link.
VALUES = {"rate", "delay", "jitter", "loss"}


def changes_of(patches: Mapping[str, LinkPatch], requested: Mapping[str, RequestedState]) -> list[LinkChange]:
    """Return the value changes that patches ask for, by directed link, after checking all patches.

    `requested` has the state that was requested of each link before.

    Raises:
        ApiProblem: A link is not there, or its tag is outdated.
        SpecError: A value is wrong.
    """
    changes = []
    for name, patch in patches.items():
        if name not in requested:
            raise ApiProblem(MISSING, f"the network has no link {name}; its links: {', '.join(sorted(requested))}")
        if patch.tag is not None and patch.tag != (tag := tag_of(requested[name])):
            raise ApiProblem(STALE, f"{name} was changed meanwhile: its tag is {tag}, not {patch.tag}; read it again")
        values = patch.model_dump(include=VALUES, exclude_unset=True)
        change = validate(LinkChange, {"link": name, **values}, Path(name))
        if values:
            changes.append(change)
    return changes


def pairs_of(patches: Mapping[str, LinkPatch]) -> list[tuple[str, str, bool]]:
    """Return the physical pairs that patches take down or up, each once: the two sites, and whether it is to be up.

    Raises:
        SpecError: The two links of a pair have different values of `up`.
    """
    pairs: list[tuple[str, str, bool]] = []
    for name, patch in patches.items():
        if patch.up is None:
            continue
        source, target = link_ends(name)
        back = patches.get(link_name(target, source))
        if back is not None and back.up is not None and back.up != patch.up:
            rule = f"links go up and down in pairs, and {link_name(target, source)} has the opposite value"
            remedy = "the same value for both links, or a value for one of them"
            raise SpecError(Path(name), [Fault("up", rule, remedy)])
        if (target, source, patch.up) not in pairs:
            pairs.append((source, target, patch.up))
    return pairs


class EventCallback(Protocol):
    """Receives each event of a network. `changed` has all of a link's values that override its file or trace."""

    def __call__(self, kind: str, target: str, *, changed: Mapping[str, float | None] | None = None) -> None:
        """Handle one event; `target` is its link, worker or network."""


def change_links(
    network: Network, changes: Iterable[LinkChange], pairs: Iterable[tuple[str, str, bool]], on_event: EventCallback
) -> None:
    """Change the values of links, which override their traces, and take physical pairs of two sites down or up.

    `on_event` is called after each change. No change is made if one of them would be refused.
    """
    changes = list(changes)
    for change in changes:
        network.links_in_force.check(change)
    for change in changes:
        changed = network.links_in_force.change(change).values()
        on_event("change", change.link, changed=changed)
    for a, b, up in pairs:
        network.take(a, b, up)
        on_event("up" if up else "down", pair_name(a, b))


def check_file(file: Path) -> None:
    """Raise ApiProblem if a topology's file does not exist."""
    if not holds(file.is_file):
        raise ApiProblem(MISSING, f"there is no file {file} on this machine; write the path of a topology file")


def check_site(testbed: Testbed, site: str) -> None:
    """Raise ApiProblem if a site that is to get a worker does not exist, or is full."""
    sites = testbed.network.topology.sites
    if site not in sites:
        raise ApiProblem(MISSING, f"the network has no site {site}; sites: {', '.join(sites)}")
    if sites[site].workers >= MAX_WORKERS:
        raise ApiProblem(NOT_HERE, f"{site} has {MAX_WORKERS} workers already, and its LAN has no further address")


def pause_replay(testbed: Testbed, paused: bool) -> None:
    """Pause the replay of traces, or let it continue.

    Raises:
        ApiProblem: The replay is to pause, and a link has a packet-delivery trace.
    """
    links = testbed.network.topology.links.values()
    if paused and any(link.trace is not None and link.trace.opportunities is not None for link in links):
        raise ApiProblem(NOT_HERE, "a packet-delivery trace can't be paused: the shaping core replays it by itself")
    if paused:
        testbed.replay.pause()
    else:
        testbed.replay.resume(links)


@contextmanager
def as_api_problem(*passed: type[Exception]) -> Iterator[None]:
    """Turn any error inside the context into an ApiProblem, so that a failed request does not take the network down.

    Errors of the classes `passed` are left as they are.
    """
    try:
        yield
    except passed:
        raise
    except ApiProblem:
        raise
    except (SpecError, KeyError) as error:
        raise ApiProblem(WRONG, str(error.args[0])) from error
    except (EmulationError, *engine.ENGINE_ERRORS) as error:
        text = ending_of(error)[1]
        log.warning("a request failed: %s", text)  # without a traceback, since `testbed run` logs to the terminal
        raise ApiProblem(CANNOT, text) from error
    except Exception as error:
        log.exception("a request failed")
        text = f"{type(error).__name__}: {error}; the change may be incomplete, see `testbed network list`"
        raise ApiProblem(FAILED, text) from error
