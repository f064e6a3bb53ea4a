"""What people ask of a testbed, checked before anything is done, and what goes wrong then, in words."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from testbed.api.models import LinkPatch
from testbed.api.problem import CANNOT, FAILED, MISSING, NOT_HERE, STALE, WRONG, ApiProblem
from testbed.emulation.containers import engine
from testbed.emulation.daemon.status import tag_of
from testbed.emulation.errors import EmulationError, ending_of
from testbed.emulation.links.links import RequestedState
from testbed.emulation.network.network import Network
from testbed.emulation.testbed import Testbed
from testbed.link import link_ends, pair_name
from testbed.spec.errors import SpecError
from testbed.spec.event import LinkChange
from testbed.spec.load import validate
from testbed.spec.topology import MAX_WORKERS

log = logging.getLogger(__name__)

#: What of a patch is a value of the link's.
VALUES = {"rate", "delay", "jitter", "loss"}


def changes_of(patches: Mapping[str, LinkPatch], requested: Mapping[str, RequestedState]) -> list[LinkChange]:
    """The changes of values that patches ask for, once everything is right with all of them. ApiProblem, SpecError."""
    changes = []
    for name, patch in patches.items():
        if name not in requested:
            raise ApiProblem(MISSING, f"no link {name} is up; links: {', '.join(sorted(requested))}")
        if patch.tag is not None and patch.tag != (tag := tag_of(requested[name])):
            raise ApiProblem(STALE, f"{name} was changed meanwhile: its tag is {tag}, not {patch.tag}; read it again")
        values = patch.model_dump(include=VALUES, exclude_unset=True)
        change = validate(LinkChange, {"link": name, **values}, Path(name))
        if values:
            changes.append(change)
    return changes


def pairs_of(patches: Mapping[str, LinkPatch]) -> list[tuple[str, str, bool]]:
    """The physical pairs that patches take down or up: the two sites, and whether it is up."""
    return [(*link_ends(name), patch.up) for name, patch in patches.items() if patch.up is not None]


class EventCallback(Protocol):
    """Hears what happens to a network: a change of a link has all values that are in force over its file or trace."""

    def __call__(self, kind: str, target: str, *, changed: Mapping[str, float | None] | None = None) -> None: ...


def change_links(
    network: Network, changes: Iterable[LinkChange], pairs: Iterable[tuple[str, str, bool]], on_event: EventCallback
) -> None:
    """Change the values of links, which stay in force over their traces, and take physical pairs down or up.

    Args:
        network: The network in force.
        changes: The values that change, by directed link.
        pairs: The two sites of each physical pair, and whether the pair is to be up.
        on_event: Called after each change.
    """
    for change in changes:
        changed = network.links_in_force.change(change).values()
        on_event("change", change.link, changed=changed)
    for a, b, up in pairs:
        network.take(a, b, up)
        on_event("up" if up else "down", pair_name(a, b))


def check_file(file: Path) -> None:
    """Raise ApiProblem where a topology's file is not there."""
    if not file.is_file():
        raise ApiProblem(MISSING, f"there is no file {file} on this machine; write the path of a topology file")


def check_site(testbed: Testbed, site: str) -> None:
    """ApiProblem where a site that is to get a worker is not there, or is full."""
    sites = testbed.network.topology.sites
    if site not in sites:
        raise ApiProblem(MISSING, f"the network has no site {site}; sites: {', '.join(sites)}")
    if sites[site].workers >= MAX_WORKERS:
        raise ApiProblem(NOT_HERE, f"{site} has {MAX_WORKERS} workers already, and its LAN has no further address")


def pause_replay(testbed: Testbed, paused: bool) -> None:
    """Hold the replay of traces, or let it go on. ApiProblem where a trace is one of single packets' moments."""
    links = testbed.network.topology.links.values()
    if any(link.trace is not None and link.trace.opportunities is not None for link in links):
        raise ApiProblem(NOT_HERE, "a packet-delivery trace can't be paused: the shaping core replays it by itself")
    if paused:
        testbed.replay.pause()
    else:
        testbed.replay.resume(links)


@contextmanager
def as_api_problem() -> Iterator[None]:
    """What goes wrong inside, as an ApiProblem: whoever asks for what fails must not take the network down for
    others."""
    try:
        yield
    except ApiProblem:
        raise
    except (SpecError, KeyError) as error:
        raise ApiProblem(WRONG, str(error.args[0])) from error
    except (EmulationError, *engine.ENGINE_ERRORS) as error:
        log.exception("a request failed")
        raise ApiProblem(CANNOT, ending_of(error)[1]) from error
    except Exception as error:
        log.exception("a request failed")
        text = f"{type(error).__name__}: {error}; the change may be incomplete, see `testbed status`"
        raise ApiProblem(FAILED, text) from error
