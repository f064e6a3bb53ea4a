"""Bad input, said so that the reader can correct it: which file, which field, what rule, what to write instead."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testbed.errors import BAD_INPUT


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in a file."""

    #: A dotted path, or a line and column.
    field: str
    #: The violated rule in words.
    problem: str
    #: The text to write instead.
    remedy: str
    #: The field's line, where the file has it.
    line: int | None = None

    def __str__(self) -> str:
        place = "" if self.line is None else f" (line {self.line})"
        return f"{self.field}: {self.problem}{place}\n    write instead: {self.remedy}"


class SpecError(ValueError):
    """A file that cannot be used, with everything found wrong in it."""

    exit_code = BAD_INPUT

    def __init__(self, file: Path | str, faults: list[Fault]) -> None:
        self.file = Path(file)
        self.faults = faults
        super().__init__("\n".join(f"{file}: {fault}" for fault in faults))

    @property
    def fields(self) -> tuple[str, ...]:
        """The field of each fault."""
        return tuple(fault.field for fault in self.faults)
