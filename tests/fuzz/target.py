"""What is fuzzed: something that takes bytes which may be anybody's."""

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

#: What the command line turns into words and exit code 2, and what ends who said it. Anything else is a finding.
CLEAN = (SpecError, TraceError, ProtocolError, PlanError)

Feed = Callable[[bytes], None]


@contextmanager
def only_clean_errors() -> Iterator[None]:
    """Lets go what is said in words to whoever the bytes are from."""
    with suppress(*CLEAN):
        yield


@dataclass(frozen=True)
class Target:
    """What is fed: `open` sets it up in an empty folder, and yields what takes the bytes and raises what comes of them.

    A search begins with its `seeds`, by name, and those of the corpus. Errors that are `clean` are no findings.
    """

    name: str
    open: Callable[[Path], AbstractContextManager[Feed]]
    seeds: Mapping[str, bytes]
    clean: tuple[type[Exception], ...] = CLEAN

    @contextmanager
    def fed(self, folder: Path) -> Iterator[Feed]:
        """What takes the bytes, and raises nothing but findings."""
        with self.open(folder) as use:

            def feed(data: bytes) -> None:
                with suppress(*self.clean):
                    use(data)

            yield feed
