"""A scheme with its options, chosen for a training loop that stays unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.schemes import SCHEMES, named
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
        scheme = named(name)
        if scheme.exchange == "gossip":
            raise Misfit(name, "its members gossip, each in a loop of its own", f"one of {_others()}")
        if scheme.conducted:
            raise Misfit(name, "an experiment's controller chooses for it", f"one of {_others()}")
        if unknown := [option for option in options if option not in scheme.fields]:
            raise Misfit(unknown[0], f"{name} has no such option", f"some of {', '.join(scheme.fields)}")
        return cls(scheme, scheme.read(options))

    @classmethod
    def parse(cls, text: str) -> SchemeChoice:
        """Return the choice that a text names: `local_sgd`, `diloco:every=32,outer.momentum=0.8`.

        Raises:
            ValueError: As `of`, or the text has another form.
        """
        name, _, rest = text.partition(":")
        options: dict[str, Any] = {}
        for word in filter(None, rest.split(",")):
            path, given, value = word.partition("=")
            if not given:
                raise Misfit(word, "an option has a value", f"{word}=VALUE")
            *groups, option = path.split(".")
            inside = options
            for group in groups:
                inside = inside.setdefault(group, {})
            inside[option] = _value(value)
        return cls.of(name, options)

    def __str__(self) -> str:
        options = ", ".join(f"{name}={getattr(self.options, name)}" for name in self.scheme.fields)
        return f"{self.scheme.name} ({options})"

    def check_plan(self, codec: str, grouped: bool) -> None:
        """Raise Misfit where a plan does not suit the scheme: by its codec, or by having groups (`grouped`) or none."""
        self.options.check_plan("", {}, codec)
        if self.options.among_all and grouped:
            raise Misfit("policy", "the plan has rounds inside groups, and here each must be among all", "another one")
        if self.options.site_period > 1 and not grouped:
            raise Misfit("period", "rounds inside groups need a plan with groups, and this one has none", "period=1")


def _others() -> str:
    """Return the names of the schemes that can be around a loop's steps."""
    return ", ".join(one.name for one in SCHEMES.values() if one.exchange == "all-reduce" and not one.conducted)


def _value(text: str) -> Any:
    """Return the value of a JSON text; any other word is itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
