"""A fuzzed target: a reader of bytes that anybody may send."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import testbed
from testbed.plan import PlanError
from testbed.protocol import ProtocolError
from testbed.spec.errors import SpecError
from testbed.trace.trace import TraceError

ROOT = Path(testbed.__file__).parents[1]

#: Errors that the command line explains with exit code 2, or that end the sender's connection. Others are findings.
CLEAN = (SpecError, TraceError, ProtocolError, PlanError)

Feed = Callable[[bytes], None]


@contextmanager
def only_clean_errors() -> Iterator[None]:
    """Suppress errors that tell the sender of the bytes what is wrong."""
    with suppress(*CLEAN):
        yield


@dataclass(frozen=True)
class Target:
    """A reader of bytes. `open` sets it up in an empty folder, and yields a function that takes the bytes."""

    name: str
    open: Callable[[Path], AbstractContextManager[Feed]]
    #: The inputs with which a search begins, by name, beside those of the corpus.
    seeds: Mapping[str, bytes]
    #: Errors that are no findings.
    clean: tuple[type[Exception], ...] = CLEAN

    @contextmanager
    def fed(self, folder: Path) -> Iterator[Feed]:
        """Yield a function that takes the bytes, and raises nothing but findings."""
        with self.open(folder) as use:

            def feed(data: bytes) -> None:
                with suppress(*self.clean):
                    use(data)

            yield feed
