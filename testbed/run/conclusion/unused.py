"""What was asked of a run or a launch and did nothing: links without a byte, a controller without a round. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from testbed.spec.units import count

#: The first round of a scheme around a script is the members' comparison of their parameters (`check_alike`).
COMPARISONS = {"scheme": 1, "wan": 0}

#: What programs have not done where none came to the controller.
NEVER_CAME = {"wan": "had a large sum", "scheme": "stepped a torch optimizer"}
#: Why those that came made no round.
NO_ROUND = {
    "wan": "no sum of theirs was large enough to go by a plan",
    "scheme": "the script ended before the first; write instead: fewer steps a round, or more steps",
}


def unused_links(links: Collection[str], sites: Collection[str], wan_bytes: int) -> str:
    """Return why nothing was emulated, where no byte has gone over any of the `links`; empty where one has.

    `sites` are those in which the processes were.
    """
    if wan_bytes or not links:
        return ""
    nothing = f"no link was used, so nothing was emulated: 0 bytes went over {count(len(links), 'link')}"
    if len(sites) < 2:
        return f"{nothing}, since all processes were in {', '.join(sites)}; write instead: workers of several sites"
    return (
        f"{nothing}. Programs that meet at localhost, or start their own processes (mp.spawn, torchrun --standalone), "
        "stay on their workers; write instead: MASTER_ADDR, RANK and WORLD_SIZE as they are in the environment"
    )


def controller_failure(name: str, setting: str, outcome: Mapping[str, Any]) -> str:
    """Return how the controller of such programs failed, which fails a launch or a run; empty where it did not.

    The arguments are those of `unused_controller`.
    """
    if outcome["state"] != "failed":
        return ""
    return f"{_asked(name, setting)}: the controller gave up: {outcome['failure'] or 'it does not say why'}"


def _asked(name: str, setting: str) -> str:
    return f"backend {setting}" if name == "wan" else f"scheme {setting}"


def unused_controller(name: str, setting: str, outcome: Mapping[str, Any]) -> str:
    """Return why a controller was there for nothing; empty where there were rounds by its plans, or it gave up.

    `name` is what the processes were to have of it, `wan` or `scheme`, and `setting` which; `outcome` says who joined,
    the number of the last round, and how it ended.
    """
    asked = _asked(name, setting)
    if controller_failure(name, setting, outcome):
        return ""
    if not outcome["joined"]:
        why = f"none {NEVER_CAME[name]}, or its image is without this package"
        return f"{asked}: no process came to the controller: {why}"
    if (outcome["round"] or 0) <= COMPARISONS[name]:
        return f"{asked}: 0 rounds, so nothing was synchronized: {NO_ROUND[name]}"
    return ""
