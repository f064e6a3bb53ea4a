"""Seeds, earlier findings and some spoilt files, the same each time. `python -m tests.fuzz` searches for others."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.spec.errors import SpecError
from testbed.trace.trace import TraceError
from tests.fuzz import files, imports, messages, shaping_core
from tests.fuzz.files import RICH_TOPOLOGY
from tests.fuzz.search import CORE, CORPUS, dictionary, kept, words_of
from tests.fuzz.target import Feed, Target
from tests.fuzz.targets import NAMES, target

pytestmark = pytest.mark.local

#: More than any file may take beside what the process has already; a bomb asks for all there is.
MOST_MEMORY = 4 * 2**30


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with a folder for each target."""
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def opened(root: Path) -> Iterator[Callable[[str], Feed]]:
    """Return a function that opens a target by its name, once, and returns its strict `feed`."""
    with ExitStack() as stack:

        @cache
        def open_(name: str) -> Feed:
            (root / name).mkdir()
            return stack.enter_context(target(name).open(root / name))

        yield open_


@contextmanager
def little_memory() -> Iterator[None]:
    """Limit the memory, so that a file that asks for too much gets a MemoryError and not the machine's last byte."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name in NAMES for seed in target(name).seeds])
def test_what_the_search_begins_with_is_right(opened: Callable[[str], Feed], name: str, seed: str) -> None:
    """A seed that raises an error would keep the search from getting past that error."""
    opened(name)(target(name).seeds[seed])


@pytest.mark.parametrize("name", [path.name for path in sorted(CORPUS.iterdir()) if path.name in NAMES])
def test_what_was_found_once_is_not_found_again(opened: Callable[[str], Feed], name: str) -> None:
    for data in kept(name).values():
        with suppress(*target(name).clean):
            opened(name)(data)


def test_the_core_lives_with_all_that_the_search_begins_with_and_found(tmp_path: Path) -> None:
    """The core is built with sanitizers, so that it ends with a report for errors that C does not notice."""
    files = [*sorted((CORPUS / CORE).iterdir())]
    for name, data in shaping_core.SEEDS.items():
        files.append(tmp_path / name)
        files[-1].write_bytes(data)
    done = subprocess.run([shaping_core.build_replay(tmp_path), *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@st.composite
def disturbed(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """Draw a seed in which some places are cut out, doubled or replaced by words that upset readers."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        stop = draw(st.integers(start, min(start + 12, len(data))))
        middle = draw(st.sampled_from(words_of(seeds)) | st.just(data[start:stop] * 2) | st.binary(max_size=4))
        data = data[:start] + middle + data[stop:]
    return data


@pytest.mark.parametrize("its", (*files.TARGETS, *imports.TARGETS, *messages.TARGETS), ids=lambda its: its.name)
def test_a_spoilt_file_is_right_or_wrong_and_no_traceback(opened: Callable[[str], Feed], its: Target) -> None:
    @settings(max_examples=60, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(disturbed(list(its.seeds.values())))
    def feed(data: bytes) -> None:
        with suppress(*its.clean):
            opened(its.name)(data)

    feed()


def lines(*each: str) -> str:
    return "\n".join(each)


def experiment(topology: str, *more: str, model: str = "model: cnn") -> str:
    return lines("name: x", f"topology: ../topologies/{topology}.yaml", f"train: {{{model}, rounds: 1}}", *more)


def with_trace(file: str) -> str:
    return RICH_TOPOLOGY.replace("../traces/netstorm9/dc1-dc2.csv", file)


ALIASES = lines(
    "a0: &a0 [x, x, x, x]",
    *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}, *a{i - 1}]" for i in range(1, 15)),
    "name: *a14",
)
MERGES = lines("a0: &a0 {k: 1}", *(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 40)))
SITES = lines("name: x", "sites:", *(f"  s{i}: {{workers: 1}}" for i in range(4000)))
CHANGE = "events: [{at: 1s, change: {link: paris->london, rate: 64kbit}}]"
SCALE = "scale: 1000"

BOMBS = {
    "a billion aliases": ("topology", ALIASES, "line 1, column 1"),
    "a trillion merges": ("topology", MERGES, "line 1, column 1"),
    "a list in itself": ("topology", "name: &a [*a]", "line 1, column 7"),
    "brackets": ("topology", "[" * 100_000, "file"),
    "a long file": ("topology", "x" * 2_000_000, "file"),
    "sites": ("topology", SITES, "sites"),
    "a file without end": ("topology", with_trace("/dev/zero"), "links.0.backward.trace"),
    "a folder": ("topology", with_trace("."), "links.0.backward.trace"),
    "a loop of no time": ("csv", "time_s,rate_mbps\n0,1\n1e-300,2\n", "too-many"),
    "a rate of nothing": ("csv", "time_s,rate_mbps\n0,1e-300\n", "range"),
    "a packet in thirty years": ("mahimahi", "0\n999999999999\n", "rate-below"),
    "brackets in JSON": ("iperf3", "[" * 100_000, "json"),
    "a change at a scale": ("experiment", experiment("smoke", "scale: 0.001", CHANGE), "events.0.change.rate"),
    "rates at a scale": ("experiment", experiment("fuzzed", SCALE), "scale"),
    "traces at a scale": ("experiment", experiment("netstorm9", SCALE), "scale"),
    "digits": (
        "experiment",
        experiment("smoke", model=f"model: synthetic, parameters: {'9' * 400}"),
        "train.parameters",
    ),
}


@pytest.mark.parametrize(("name", "text", "broken"), BOMBS.values(), ids=BOMBS)
def test_what_would_take_all_time_or_memory_is_refused(
    opened: Callable[[str], Feed], root: Path, name: str, text: str, broken: str
) -> None:
    feed = opened(name)
    (root / name / "topologies" / "fuzzed.yaml").write_text(RICH_TOPOLOGY.replace("5mbit", "1gbit"))
    with little_memory(), pytest.raises((SpecError, TraceError)) as caught:
        feed(text.encode())
    error = caught.value
    assert (error.fields[0] if isinstance(error, SpecError) else error.rule) == broken


def test_the_dictionary_has_libfuzzer_s_form() -> None:
    assert '"\\x72\\x61\\x74\\x65"\n' in dictionary([b"{rate: 5mbit}"])
