"""Hints for a program that fails because its container's file system differs from this machine's.

A container sees one folder of this machine, as FILES. So absolute paths inside that folder are translated in a command,
and the last lines of a failed program are searched for signs of what it lacked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.emulation.containers.fleet import FILES
from testbed.emulation.containers.limits import OUT, PIDS, PIDS_A_MEMBER
from testbed.launch.ranks import SHELLS

#: An absolute path within a word or a line. A path with a space is found only if it is the whole word.
PATH = re.compile(r"(?<![\w./~-])/[^\s'\"`;:|&<>(){},\[\]]+")
QUOTED_PATH = re.compile(r"(['\"])(/.+?)\1")

#: Folders of a container that come from its image, with other contents than this machine's.
SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib32/", "/lib64/", "/libx32/", "/etc/", "/proc/", "/sys/", "/dev/")

SHELL_SCRIPTS = (".sh", ".bash")
#: The bytes that are read of a script, for its first line.
HEAD_BYTES = 4096

#: The messages of programs for a missing file.
MISSING = re.compile(r"no such file|can't open|cannot open|cannot access|not found|does not exist", re.I)
NO_MODULE = re.compile(r"No module named '?([A-Za-z_]\w*)")
#: The messages of PyTorch, setuptools and shells for a missing compiler.
NO_COMPILER = re.compile(
    r"No working C\+\+ compiler|InvalidCxxCompiler|Ninja is required to load C\+\+ extensions|fatal error: Python\.h|"
    r"(?:command '|No such file or directory: '|: )(?:\S*[/-])?(?:g\+\+|gcc|clang\+\+|clang|c\+\+|cc)'?"
    r"(?: failed|: (?:command )?not found|$)",
    re.M,
)
NOT_LOADED = re.compile(r"failed to map segment from shared object")
DENIED = re.compile(rf"(?:{OUT}|/dev/shm)/\S*?['\"]?: [Pp]ermission denied|[Pp]ermission denied: '(?:{OUT}|/dev/shm)/")

#: The messages of programs that look for a host of the internet.
OUTSIDE = re.compile(
    r"Temporary failure in name resolution|Name or service not known|No address associated with hostname|"
    r"[Cc]ould not resolve host|Failed to resolve '|[Cc]ouldn't connect to 'https?://|"
    r"getaddrinfo (?:EAI_AGAIN|ENOTFOUND)|: no such host\b|(?<![\w.-])(?:git|curl|wget)'?: (?:command )?not found"
)
#: The messages of shells and engines for a missing installer of packages, and Python's for a missing pip.
INSTALLER = re.compile(
    r"(?<![\w.-])(?:pip[\d.]*|conda|mamba|uv|poetry|apt|apt-get|sudo)'?: (?:command )?not found|No module named '?pip\b"
)
#: The messages of Python, libraries and shells for a thread or a process that the kernel refuses.
NO_THREAD = re.compile(
    r"can't start new thread|pthread_create failed|[Cc]annot fork|fork: (?:retry: )?Resource temporarily unavailable"
)
#: The messages of PyTorch for a missing GPU, and for a full /dev/shm.
NO_GPU = re.compile(r"not compiled with CUDA enabled|Found no NVIDIA driver|No (?:CUDA|HIP) GPUs are available")
FULL = re.compile(r"No space left on device|killed by signal: Bus error")

NO_INTERNET = (
    "a worker reaches only the other workers, not the internet: fetch models and data before, into the folder of "
    "--files, and packages by --image"
)
NO_INSTALLER = (
    "a container installs nothing: name the packages in a requirements file or a Dockerfile, with --image, and start "
    "the program itself"
)
TOO_MANY = (
    f"a container may have {PIDS} processes and threads, plus {PIDS_A_MEMBER} for each worker of the network: "
    "start fewer"
)
NO_GPU_HERE = (
    "a container has the GPUs that its site's `gpus` declares, by default none, and its image needs PyTorch for CUDA"
)
NO_PROGRAMS = f"/dev/shm and {OUT} hold no programs or libraries (noexec): put them into /tmp or {FILES}, which do"
READ_ONLY = f"a container may write to {FILES}, /tmp, /dev/shm and {OUT} alone; what is new in {FILES} or {OUT} is kept"
NO_ROOM = (
    f"a folder is full: --tmp sets the size of /tmp, --shm of /dev/shm, --out of {OUT} and of what is new in {FILES}"
)
NEEDS_COMPILER = (
    "its image has no C++ compiler with Python's headers: name an image that has them by --image (docs/launch.md)"
)


@dataclass(frozen=True, slots=True)
class ContainerFiles:
    """The files of this machine that a container sees."""

    #: The folder that is FILES in the container; None if it sees none.
    files: Path | None

    def translate(self, words: Sequence[str]) -> list[str]:
        """Return a command with every path inside `files` replaced by the container's path."""
        return [self._inside(word) or PATH.sub(lambda path: self._inside(path[0]) or path[0], word) for word in words]

    def hints(self, words: Sequence[str], said: Sequence[str]) -> list[str]:
        """Return what to do about a command that failed because its container lacks something, one line each.

        `said` are the last lines that it printed.
        """
        text = "\n".join(said)
        found = [*self._not_seen(words, said), *self._script_hints(words, text)]
        if self.files is not None:
            found += line_end_hints(words, self.files)
        if NOT_LOADED.search(text) or DENIED.search(text):
            found.append(NO_PROGRAMS)
        if "Read-only file system" in text:
            found.append(READ_ONLY)
        if FULL.search(text):
            found.append(NO_ROOM)
        borders = ((OUTSIDE, NO_INTERNET), (INSTALLER, NO_INSTALLER), (NO_THREAD, TOO_MANY), (NO_GPU, NO_GPU_HERE))
        found += [hint for pattern, hint in borders if pattern.search(text)]
        if NO_COMPILER.search(text):
            found.append(NEEDS_COMPILER)
        if (module := NO_MODULE.search(text)) and module[1] != "pip":
            found.append(f"its image has no {module[1]}: name it in a file of requirements, --image requirements.txt")
        return list(dict.fromkeys(found))

    def _inside(self, path: str) -> str | None:
        """Return the container's path of a path of this machine; None if it has none, or a file of its own there."""
        if self.files is None or not path.startswith("/") or path.startswith(SYSTEM) or not _is_there(Path(path)):
            return None
        # Links are not followed, since the container has them too: a virtual environment's `python` is one.
        place = Path(path).parent.resolve() / Path(path).name if Path(path).name else Path(path)
        root = self.files.resolve()
        if root == Path("/") or not (place == root or root in place.parents):
            return None
        return str(Path(FILES) / place.relative_to(root))

    def _not_seen(self, words: Sequence[str], said: Sequence[str]) -> Iterator[str]:
        """Yield a hint about the first file of this machine that a program did not find or could not read."""
        for line in said:
            denied = "ermission denied" in line
            if not denied and not MISSING.search(line):
                continue
            for path in dict.fromkeys([*(match[2] for match in QUOTED_PATH.finditer(line)), *PATH.findall(line)]):
                if hint := self._why_denied(path) if denied else self._why_missing(path, words):
                    yield hint
                    return

    def _why_denied(self, path: str) -> str | None:
        """Return why a file of the folder may not be read; None if it may, or is not in the folder."""
        if self.files is None or not path.startswith(f"{FILES}/"):
            return None
        here = self.files / path.removeprefix(f"{FILES}/")
        if not _is_there(here):
            return None
        needed = 0o005 if here.is_dir() else 0o004
        if here.stat().st_mode & needed == needed:
            return None
        return f"the workers' user, which is not a user of this machine, may not read {here}: chmod o+rX {here}"

    def _why_missing(self, path: str, words: Sequence[str]) -> str | None:
        """Return why a container does not have a path; None if this machine does not have it either."""
        if path.startswith(SYSTEM):
            return None
        if path.startswith(f"{FILES}/") and self.files is not None:
            name = path.removeprefix(f"{FILES}/")
            here = Path(os.path.normpath(self.files / name))
            if not _is_there(here) and name in words and _is_there(Path(name)):
                return f"{name} is looked for in {self.files}, which containers see as {FILES}: give --files ."
        else:
            here = Path(path)
        if not _is_there(here):
            return None
        if (inside := self._inside(str(here.resolve()))) is not None:
            return None if inside == path else f"{here} is {inside} in a container"
        if self.files is None:
            return f"{here} is on this machine, which containers don't see: bring the network up with --files DIR"
        return (
            f"{here.resolve()} is on this machine; containers see only {self.files}, as {FILES}: "
            "give --files (`files` in an experiment) a folder that has it, or use --on-host"
        )

    def _script_hints(self, words: Sequence[str], text: str) -> Iterator[str]:
        """Yield why a script of the folder can't be started."""
        if not words or "/" not in words[0] or self.files is None:
            return
        script = self.files / words[0].removeprefix(f"{FILES}/")
        if not _is_there(script) or not script.is_file():
            return
        head = _head(script)
        if "ermission denied" in text and not script.stat().st_mode & 0o001:
            yield f"the workers' user may not run {words[0]}: chmod o+rx {words[0]}"
        elif head.startswith(b"#!") and not head.endswith(b"\r") and f"exec {words[0]}: no such file" in text:
            yield f"{words[0]} asks for {head[2:].decode(errors='replace').strip()}, which its image does not have"


#: The files of a container that sees no folder of this machine.
NO_FILES = ContainerFiles(None)


def host_hints(words: Sequence[str], said: Sequence[str]) -> Iterator[str]:
    """Yield what to do about a command of this machine that failed, by the last lines that it printed."""
    yield from line_end_hints(words, None)
    if OUTSIDE.search("\n".join(said)):
        yield NO_INTERNET
    if module := NO_MODULE.search("\n".join(said)):
        yield (
            f"this machine's {words[0]} has no {module[1]}: install it there, or leave out --on-host and name it in a "
            "file of requirements, --image requirements.txt"
        )


def line_end_hints(words: Sequence[str], folder: Path | None) -> Iterator[str]:
    """Yield a hint about each script of a command whose lines end as on Windows.

    `folder` is the folder that a container sees; None for a command of this machine.
    """
    for number, word in enumerate(words):
        shell = number > 0 and words[number - 1].rpartition("/")[2] in SHELLS
        if number > 0 and not shell and not word.endswith(SHELL_SCRIPTS):
            continue
        if folder is not None and word.startswith("/") and not word.startswith(f"{FILES}/"):
            continue  # a file of the container's image
        script = (folder or Path()) / word.removeprefix(f"{FILES}/")
        word = str(script) if word.startswith("/") else word
        if (head := _head(script)).endswith(b"\r") and b"\0" not in head:
            yield f"{word} has Windows line ends (CRLF), which no shell accepts: `sed -i 's/\\r$//' {word}`"


def _is_there(path: Path) -> bool:
    """Return whether a file exists; False for a word that is too long for a file's name."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _head(script: Path) -> bytes:
    """Return the first line of a file, without its end; empty if the file can't be read."""
    try:
        with script.open("rb") as file:
            return file.read(HEAD_BYTES).partition(b"\n")[0]
    except (OSError, ValueError):  # a word with a NUL is not a path
        return b""
