"""Errors in files that users write: which file, which field, what rule is broken, what to write instead."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testbed.errors import BAD_INPUT


@dataclass(frozen=True, slots=True)
class Fault:
    """One broken rule in a file."""

    #: The field's dotted path, or a line and column where no field is at fault.
    field: str
    #: The broken rule, a sentence.
    problem: str
    #: The text to write instead.
    remedy: str
    #: The line of the field; None if the file does not have the field.
    line: int | None = None

    def __str__(self) -> str:
        place = "" if self.line is None else f" (line {self.line})"
        return f"{self.field}: {self.problem}{place}\n    write instead: {self.remedy}"


class SpecError(ValueError):
    """A wrong file; `faults` has every broken rule that was found in it."""

    exit_code = BAD_INPUT

    def __init__(self, file: Path | str, faults: list[Fault]) -> None:
        self.file = Path(file)
        self.faults = faults
        super().__init__("\n".join(f"{file}: {fault}" for fault in faults))

    @property
    def fields(self) -> tuple[str, ...]:
        """The field of each fault."""
        return tuple(fault.field for fault in self.faults)
