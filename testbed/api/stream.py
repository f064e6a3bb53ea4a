"""A state as who follows it gets it: whole once, then what became different, numbered. Pure.

    {"kind": "snapshot", "number": 7, "state": {section: {key: value}}}
    {"kind": "update", "number": 8, "set": {section: {key: value}}, "removed": {section: [key]}}

An update is of the state of the number before. Who sees a number left out lacks an update, and asks for a snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Section → key → value, as JSON has them. What has no values is not told apart from what is not there.
State = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Update:
    """What became different from one state to the next: values that are new or other, keys that are gone."""

    set: State
    removed: Mapping[str, list[str]]

    def __bool__(self) -> bool:
        return bool(self.set or self.removed)


def update_between(before: State, after: State) -> Update:
    """What became different. Values that are the same object are taken for equal without a look into them."""
    changed, removed = {}, {}
    for section in before.keys() | after.keys():
        old, new = before.get(section, {}), after.get(section, {})
        if other := {key: value for key, value in new.items() if key not in old or _differs(old[key], value)}:
            changed[section] = other
        if gone := [key for key in old if key not in new]:
            removed[section] = gone
    return Update(changed, removed)


def updated(state: State, update: Update) -> State:
    """The state after an update."""
    sections = {section: dict(values) for section, values in state.items()}
    for section, values in update.set.items():
        sections.setdefault(section, {}).update(values)
    for section, keys in update.removed.items():
        for key in keys:
            sections[section].pop(key)
    return sections


def snapshot_message(number: int, state: State) -> dict[str, Any]:
    """What a follower begins with."""
    return {"kind": "snapshot", "number": number, "state": state}


def update_message(number: int, update: Update) -> dict[str, Any]:
    """What it gets then."""
    return {"kind": "update", "number": number, "set": update.set, "removed": update.removed}


def _differs(old: Any, new: Any) -> bool:
    """Whether two values are not the same in JSON. To Python False is 0, and 1 is 1.0, also within lists."""
    if old is new:
        return False
    if type(old) is not type(new) or old != new:
        return True
    if isinstance(new, Mapping):
        return any(_differs(old[key], value) for key, value in new.items())
    return isinstance(new, list | tuple) and any(map(_differs, old, new))
