"""Search one target by coverage: `python -m tests.fuzz.search TARGET SECONDS FOLDER`.

It is a process of its own, since libFuzzer ends the process in which it runs. FOLDER keeps the corpus between searches,
and the findings.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tests.fuzz.targets import GUIDES, module_of, target

#: The one target that is not in Python.
CORE = "core"

#: Earlier findings, in a folder for each target.
CORPUS = Path(__file__).with_name("corpus")

#: An input takes milliseconds of a processor; the other limit leaves time for waits, also on a busy machine.
#: The memory is mostly the libraries'.
MOST_PROCESSOR_S, MOST_SECONDS, MOST_MEMORY_MB = 10, 120, 2048

#: Words that upset readers.
NASTY = (
    "nan", "inf", "-inf", "1e300", "1e-300", "-1", "0", "99999999999999999999", "1e400", "0x10", "1_000", "~", "null",
    "&a", "*a", "<<: *a", "!!binary", "!!int", "!!timestamp", "!!set", "!!str", "? ", "[[[[", "{{{{", "---\n", "%YAML",
    "\\u0000", "\\ud800", "\ufeff", "\u2028", "&lt;", "<!DOCTYPE", "<![CDATA[", "]]>", '"', "'", "\t", "\r\n",
)  # fmt: skip


def kept(target: str) -> Mapping[str, bytes]:
    """Return a target's inputs that the repository keeps beside its seeds, by name."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / target).glob("*"))}


def words_of(seeds: Iterable[bytes]) -> list[bytes]:
    """Return the words in these inputs, and those that upset readers."""
    words = {word for data in seeds for word in re.findall(rb"[\w.%><-]{1,64}", data)}
    return sorted(words | {word.encode() for word in NASTY})


def dictionary(seeds: Iterable[bytes]) -> str:
    """Return the words in libFuzzer's format: a quoted string a line."""
    return "".join(f'"{_escaped(word)}"\n' for word in words_of(seeds))


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def arguments_for(name: str, seeds: Mapping[str, bytes], seconds: int, folder: Path) -> list[str]:
    """Return libFuzzer's arguments; the seeds are added to the folder's corpus."""
    corpus, findings = folder / "corpus" / name, folder / "findings"
    for each in (corpus, findings):
        each.mkdir(parents=True, exist_ok=True)
    for seed, data in seeds.items():
        (corpus / f"seed-{seed}").write_bytes(data)
    words = folder / f"{name}.dict"
    words.write_text(dictionary(seeds.values()))
    options = {
        "max_total_time": seconds,
        "max_len": 8192,
        "timeout": MOST_SECONDS,
        "rss_limit_mb": MOST_MEMORY_MB,
        "print_final_stats": 1,
        "dict": words,
        "artifact_prefix": f"{findings}/{name}-",
    }
    return [*(f"-{option}={value}" for option, value in options.items()), str(corpus)]


def main() -> None:
    """Search until the time is over or something is found; the exit code is libFuzzer's, 0 without a finding."""
    name, seconds, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if name == CORE:
        search_core(seconds, folder)
    else:
        search_python(name, seconds, folder)


def search_core(seconds: int, folder: Path) -> None:
    """Replace this process by the C core's fuzzer."""
    from tests.fuzz import shaping_core

    binary = shaping_core.build(folder)
    seeds = {**shaping_core.SEEDS, **kept(CORE)}
    arguments = ("-len_control=0", *arguments_for(CORE, seeds, seconds, folder))  # many messages from the beginning
    os.execv(binary, [str(binary), *arguments])


def search_python(name: str, seconds: int, folder: Path) -> None:
    """Search a target in Python. Its readers are instrumented, so nothing of them may be imported before."""
    import atheris  # which `make fuzz` installs, and nothing else needs

    with atheris.instrument_imports(include=list(GUIDES[module_of(name)])):
        found = target(name)
    arguments = arguments_for(name, {**found.seeds, **kept(name)}, seconds, folder)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place, found.fed(Path(place)) as feed:
        atheris.Setup([sys.argv[0], *arguments], saving_findings(feed, folder / "findings" / f"{name}-"))
        atheris.Fuzz()


def saving_findings(feed: Callable[[bytes], None], prefix: Path) -> Callable[[bytes], None]:
    """Wrap `feed` so that findings are written to files, as libFuzzer does where PyTorch is not loaded."""

    def feed_or_keep(data: bytes) -> None:
        began_s = time.process_time()
        try:
            feed(data)
            took_s = time.process_time() - began_s
            assert took_s < MOST_PROCESSOR_S, f"it took {took_s:.0f} s of a processor"
        except BaseException:
            file = Path(f"{prefix}{hashlib.sha256(data).hexdigest()[:16]}")
            file.write_bytes(data)
            print(f"Test unit written to {file}", file=sys.stderr, flush=True)
            raise

    return feed_or_keep


if __name__ == "__main__":
    main()
