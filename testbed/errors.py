"""The base of the errors that carry fields, so that callers and tests need not read the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self, TypedDict, Unpack


class Details(TypedDict, total=False):
    """The fields of a DetailedError, each given where it applies."""

    rule: str | None
    field: str | None
    given: object
    file: Path | str | None
    line: int | None
    member: str | None
    link: str | None
    host: str | None
    round: int | None
    epoch: int | None


class DetailedError(Exception):
    """An error with fields. A field that does not apply is None."""

    #: The violated rule: a short identifier such as `unknown-member`, which stays when the text is rewritten.
    rule: str | None = None
    #: The name or dotted path of the value that breaks the rule.
    field: str | None = None
    #: The value that breaks the rule.
    given: object = None
    file: Path | str | None = None
    #: The number of the line or packet in the file, from 1.
    line: int | None = None
    member: str | None = None
    link: str | None = None
    host: str | None = None
    round: int | None = None
    epoch: int | None = None

    def __init__(self, text: object = "", **details: Unpack[Details]) -> None:
        super().__init__(text)
        vars(self).update(details)

    @property
    def details(self) -> dict[str, Any]:
        """The fields that apply, to pass them on to another error."""
        return {name: vars(self)[name] for name in Details.__annotations__ if name in vars(self)}

    def located(self, place: object, **details: Unpack[Details]) -> Self:
        """Return this error with the place before its text, and with these fields beside its own."""
        return type(self)(f"{place}: {self}", **{**self.details, **details})
