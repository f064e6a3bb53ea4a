"""Finds parts of a run or a launch that were not used: links without a byte, a controller without a round. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from testbed.spec.units import count

#: Rounds without training: a scheme around a script first compares the members' parameters (`check_alike`).
COMPARISONS = {"scheme": 1, "wan": 0}

#: What no process did, if none joined the controller.
NOT_DONE = {"wan": "reduced a large tensor", "scheme": "stepped a torch optimizer"}
#: Why processes that joined made no round.
NO_ROUND = {
    "wan": "no reduced tensor was large enough for a plan",
    "scheme": "the script ended before the first; write instead: fewer steps a round, or more steps",
}


def unused_links(links: Collection[str], sites: Collection[str], wan_bytes: int) -> str:
    """Return why no byte went over a link, and what to do; an empty text if one did.

    Args:
        links: The network's links.
        sites: The sites of the workers that trained.
        wan_bytes: The bytes that arrived over all links.
    """
    if wan_bytes or not links:
        return ""
    nothing = f"no link was used, so nothing was emulated: 0 bytes went over {count(len(links), 'link')}"
    if len(sites) < 2:
        return f"{nothing}: all processes ran in {', '.join(sites)}; write instead: workers of several sites"
    return (
        f"{nothing}. A program that connects to localhost, or starts its own processes (mp.spawn, torchrun "
        "--standalone), stays on its worker; write instead: MASTER_ADDR, RANK and WORLD_SIZE of the environment"
    )


def controller_failure(name: str, setting: str, outcome: Mapping[str, Any]) -> str:
    """Return how the programs' controller failed, which fails the run; an empty text if it did not.

    The arguments are those of `unused_controller`.
    """
    if outcome["state"] != "failed":
        return ""
    return f"{_asked(name, setting)}: the controller failed: {outcome['failure'] or 'it gave no reason'}"


def _asked(name: str, setting: str) -> str:
    return f"backend {setting}" if name == "wan" else f"scheme {setting}"


def unused_controller(name: str, setting: str, outcome: Mapping[str, Any]) -> str:
    """Return why no round went by the controller's plans; an empty text if one did, or if the controller failed.

    Args:
        name: What the programs use the controller for: `wan` (a backend) or `scheme`.
        setting: The backend's or the scheme's setting.
        outcome: The controller's last status: `joined`, `round`, `state` and `failure`.
    """
    asked = _asked(name, setting)
    if controller_failure(name, setting, outcome):
        return ""
    if not outcome["joined"]:
        why = f"none {NOT_DONE[name]}, or the image lacks the package `testbed`"
        return f"{asked}: no process joined the controller: {why}"
    if (outcome["round"] or 0) <= COMPARISONS[name]:
        return f"{asked}: 0 rounds, so nothing was synchronized: {NO_ROUND[name]}"
    return ""
