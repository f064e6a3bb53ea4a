"""Traces as other projects publish or record them. A form of text is a module here with a `FORM`, and a line below.

A form reads a file into one trace, or into one for each direction, which become trace files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from testbed.atomic_file import check_new
from testbed.trace.csv import write_csv
from testbed.trace.text import read_text, unpacked_name
from testbed.trace.trace import Trace, TraceError, naming_file


@dataclass(frozen=True, slots=True)
class ImportedTrace:
    """A trace that was read in another form's file."""

    trace: Trace
    #: The trace's source and how the trace was made, a line each: they come first in the file that is written.
    comments: tuple[str, ...] = ()
    #: The name of the file to write, `log-down.csv`. A form gives the ending alone, `-down`: see `named_after`.
    name: str = ""

    def named_after(self, path: Path, form: str) -> ImportedTrace:
        """Return the trace with a name after its source, and with a comment that names the source and its form."""
        name = f"{unpacked_name(path).stem}{self.name}.csv"
        return replace(self, name=name, comments=(f"from {path.name} ({form})", *self.comments))


@dataclass(frozen=True, slots=True)
class Form:
    """A form of text that traces are read from; `testbed trace import NAME` is made of it."""

    #: The name of the command.
    name: str
    #: The help of the command.
    help: str
    #: Reads a file's text, given the length in seconds of the trace's rows: None where the form chooses it.
    read: Callable[[str, float | None], Sequence[ImportedTrace]]
    #: The help of the option `--step`, the length of the rows. Empty where each line is a row.
    step: str = ""

    def import_file(self, path: Path, step_s: float | None = None) -> list[ImportedTrace]:
        """Return the traces in a file. Raises TraceError with the file and, where there is one, the line."""
        with naming_file(path):
            return [found.named_after(path, self.name) for found in self.read(read_text(path), step_s)]


def write_imported(found: Sequence[ImportedTrace], folder: Path) -> list[Path]:
    """Write the traces into a folder, and return the files that were written.

    Raises:
        TraceError: There is no such folder, or two traces would be the same file. Then nothing is written.
        FileExistsError: A file is there already. Then nothing is written.
    """
    if not folder.is_dir():
        text = f"{folder}: the folder does not exist; name another one with --out"
        raise TraceError(text, rule="no-folder", file=folder)
    targets = [folder / each.name for each in found]
    for number, target in enumerate(targets):
        if target in targets[:number]:
            text = f"{target}: two sources have this name; rename one, or import them one by one"
            raise TraceError(text, rule="two-sources", file=target)
    check_new(targets)
    for each, target in zip(found, targets, strict=True):
        write_csv(target, each.trace, each.comments)
    return targets


#: Modules of this package, in the order in which `testbed trace import --help` lists their forms.
_MODULES = (
    "pensieve",
    "cellular",
    "rtt_csv",
    "ping",
    "iperf3",
)

#: All forms of text by name. A capture is no text: `testbed.trace.forms.pcap` imports it.
FORMS: Mapping[str, Form] = {
    form.name: form for form in (import_module(f"{__name__}.{module}").FORM for module in _MODULES)
}
