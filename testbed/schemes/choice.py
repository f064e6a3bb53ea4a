"""A scheme with its options, chosen for a training loop that stays unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.plan import Plan
from testbed.schemes import SCHEMES, is_file, named
from testbed.schemes.options import Misfit, Options
from testbed.schemes.scheme import Scheme


@dataclass(frozen=True)
class SchemeChoice:
    """A scheme that can be around a loop's steps, with its options."""

    scheme: Scheme
    options: Options

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any]) -> SchemeChoice:
        """Return the choice of a scheme by its name.

        Raises:
            ValueError: There is no such scheme, it has no such options, or its members gossip, each in its own loop.
        """
        scheme, others = named(name), f"one of {', '.join(_around_loops())}"
        if scheme.exchange == "gossip":
            raise Misfit(name, "its members gossip, each in a loop of its own", others)
        if scheme.conducted:
            raise Misfit(name, "an experiment's controller chooses for it", others)
        if unknown := [option for option in options if option not in scheme.fields]:
            raise Misfit(unknown[0], f"{name} has no such option", f"some of {', '.join(scheme.fields)}")
        return cls(scheme, scheme.read(options))

    @classmethod
    def parse(cls, text: str, folder: Path = Path()) -> SchemeChoice:
        """Return the choice that a text names: `local_sgd`, `diloco:every=32,outer.momentum=0.8`.

        The relative path of a scheme's file begins in `folder`, by default the current one.

        Raises:
            ValueError: As `of`, or the text has another form.
        """
        name, _, rest = text.partition(":")
        options: dict[str, Any] = {}
        for word in filter(None, rest.split(",")):
            path, given, value = word.partition("=")
            if not given:
                raise Misfit(word, "an option needs a value", f"{word}=VALUE")
            *groups, option = path.split(".")
            inside = options
            for group in groups:
                inside = inside.setdefault(group, {})
                if not isinstance(inside, dict):
                    raise Misfit(group, f"has the value {inside!r}, and {word} sets an option in it", "one of the two")
            if option in inside:
                raise Misfit(option, f"{word} gives it a second value", "one of the two")
            inside[option] = _value(value)
        return cls.of(str(folder / name) if is_file(name) else name, options)

    def __str__(self) -> str:
        options = ", ".join(f"{name}={getattr(self.options, name)}" for name in self.scheme.fields)
        return f"{self.scheme.name} ({options})"

    def check(self, plan: Plan, elastic: bool) -> None:
        """Check that a session suits the scheme.

        Args:
            plan: The plan in force.
            elastic: Whether members may be lost and come back.

        Raises:
            Misfit: The plan's codecs or groups, or lost members, do not go with the scheme or its options.
        """
        for codec in sorted({plan.codec, *plan.link_codecs.values()}):
            self.options.check_plan("", {}, codec)
        if self.options.among_all and plan.groups:
            raise Misfit("policy", "the plan has rounds inside groups, and this scheme has none", "another policy")
        if self.options.site_period > 1 and not plan.groups:
            raise Misfit("period", "rounds inside groups need a plan with groups, and this one has none", "period=1")
        if elastic and not self.scheme.elastic:
            able = f"one of {', '.join(name for name in _around_loops() if SCHEMES[name].elastic)}"
            raise Misfit(self.scheme.name, "it can't go on without a lost member, and this run is elastic", able)
        if elastic:
            self.options.check_elastic()


def _around_loops() -> list[str]:
    """Return the names of the schemes that can be around a loop's steps."""
    return [one.name for one in SCHEMES.values() if one.exchange == "all-reduce" and not one.conducted]


def _value(text: str) -> Any:
    """Return the value of a JSON text; any other word is itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # a word, or brackets thousands deep
        return text
