"""The processes of a command, and the environment of each. Pure.

Variables that torchrun sets have the same names and meanings here. `TESTBED_…` variables describe the network.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

#: The default port of torchrun.
MASTER_PORT = 29500

#: The name of every worker's interface on the emulated network. Without it, gloo, NCCL and TensorPipe (TP) look for an
#: interface by the host's name, each in its own way.
INTERFACE = "eth0"

#: Programs that start a process for each of a worker's ranks by themselves.
AGENTS = ("torchrun",)
AGENT_MODULES = ("torch.distributed.run", "torch.distributed.launch")
#: The options of torchrun without a value.
AGENT_SWITCHES = ("--standalone", "--no-python", "--run-path", "--use-env", "--virtual-local-rank", "--help", "-h")

#: Programs that run the command after their own options.
_TOOLS = "uv poetry pdm pipenv hatch pixi rye conda mamba micromamba"
_LIMITS = "env nice ionice nohup time timeout stdbuf taskset numactl chrt setsid unbuffer tini"
WRAPPERS = frozenset(f"{_TOOLS} {_LIMITS}".split())
SHELLS = frozenset(("sh", "bash", "dash", "ash", "zsh", "ksh"))
#: Words that stand before a command in a shell's language.
KEYWORDS = frozenset(("exec", "command", "builtin", "time", "if", "then", "else", "elif", "while", "do", "!", "{"))
PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")
#: Python's options that take the next word.
PYTHON_VALUES = ("-W", "-X", "--check-hash-based-pycs")

#: A quotation or an escaped character in a shell's script; or a continued line's end or a comment; or a line's end.
_SCRIPT_PARTS = re.compile(r"""('[^']*'|"(?:[^"\\]|\\.)*"|\\[^\n])|(\\\n|(?<![^\s;&|()])#[^\n]*)|\n""", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker, as the environment variables of programs describe it."""

    name: str
    site: str
    #: The IPv4 address on the emulated network.
    address: str


@dataclass(frozen=True, slots=True)
class Rank:
    """A process to start on a worker, with its environment variables."""

    worker: str
    #: The name of the process in printed lines and of its log.
    name: str
    environment: dict[str, str]


def ranks_of(commands: Mapping[str, Sequence[str]], peers: Sequence[Peer], nproc: int) -> list[Rank]:
    """Return the processes to start on workers for their commands: worker by worker, in the order of ranks.

    torchrun is started once on each worker, with the number of processes to start, `nproc`. A script that hides a
    torchrun is started once for each process, as a node with one process, so the number of processes is the same.
    """
    found = []
    for group, peer in enumerate(peers):
        common = _common(peers, group)
        if agent_words(commands[peer.name]) is not None:
            found.append(Rank(peer.name, peer.name, common | _node(len(peers), group, nproc)))
            continue
        for local in range(nproc):
            node = _node(len(peers) * nproc, group * nproc + local, 1)
            own = {"RANK": group * nproc + local, "LOCAL_RANK": local, "GROUP_RANK": group}
            sizes = {"WORLD_SIZE": len(peers) * nproc, "LOCAL_WORLD_SIZE": nproc}
            name = peer.name if nproc == 1 else f"{peer.name}.{local}"
            found.append(
                Rank(peer.name, name, common | node | {key: str(value) for key, value in (own | sizes).items()})
            )
    return found


def alone(command: Sequence[str]) -> str:
    """Return the option by which a torchrun trains without the other workers; empty if the command has none."""
    words = iter(agent_words(command) or ())
    for word in words:
        name, _, value = word.partition("=")
        name = name.replace("_", "-")
        if not word.startswith("-") or name in ("-m", "--module"):
            return ""  # the script, whose own arguments follow
        if name == "--standalone":
            return word
        if not value and name not in AGENT_SWITCHES:
            value = next(words, "")
        if name == "--nnodes" and value in ("1", "1:1"):
            return f"{name} {value}"
    return ""


def agent_words(command: Sequence[str]) -> Sequence[str] | None:
    """Return torchrun's arguments in a command: options, script, script's arguments; None if it runs no torchrun.

    The command may name torchrun or its Python module, or a program or a shell that runs such a command (`uv run
    torchrun`, `bash -c "cd sub && torchrun …"`).
    """
    if not command:
        return None
    program, options = command[0].rpartition("/")[2], command[1:]
    if program in AGENTS:
        return options
    if PYTHON.fullmatch(program):
        return _agent_of_python(options)
    if program in SHELLS:
        scripts = (after for option, after in pairwise(options) if re.fullmatch(r"-[a-z]*c", option))
        found = map(agent_words, _simple_commands(next(scripts, "")))
        return next((words for words in found if words is not None), None)
    if program in WRAPPERS:
        return _agent_of_wrapper(options)
    return None


def _agent_of_python(options: Sequence[str]) -> Sequence[str] | None:
    at = 0
    while at < len(options):
        word = options[at]
        if word == "-m":
            return options[at + 2 :] if any(name in AGENT_MODULES for name in options[at + 1 : at + 2]) else None
        if word == "-c" or not word.startswith("-"):
            return options[at + 1 :] if word.rpartition("/")[2] in AGENTS else None
        at += 2 if word in PYTHON_VALUES else 1
    return None


def _agent_of_wrapper(options: Sequence[str]) -> Sequence[str] | None:
    """Return the arguments of torchrun in the command that a wrapper runs, or None.

    The command begins with the first word that is a program or a script. The words before it are the wrapper's options,
    some with values.
    """
    for at, word in enumerate(options):
        program = word.rpartition("/")[2]
        if program in AGENTS or program in SHELLS or program in WRAPPERS or PYTHON.fullmatch(program):
            return agent_words(options[at:])
        if word in ("-m", "--module"):
            return _agent_of_python(["-m", *options[at + 1 :]])
        if word.endswith((".py", ".sh")):
            return None
    return None


def _simple_commands(script: str) -> Iterator[list[str]]:
    """Yield the commands of a shell's script, each without the assignments and the keywords before it."""
    one_line = _SCRIPT_PARTS.sub(lambda part: part[1] or ("" if part[2] else " ; "), script)
    words = shlex.shlex(one_line, posix=True, punctuation_chars=True)
    words.commenters = ""  # a `#` within a word begins no comment
    words.whitespace_split = True
    command: list[str] = []
    try:
        for word in words:
            if word and set(word) <= set("();|&"):
                yield command
                command = []
            elif command or not (word in KEYWORDS or re.match(r"\w+=", word)):
                command.append(word)
    except ValueError:
        return  # a quotation without an end, which the shell reports
    yield command


def _node(count: int, rank: int, nproc: int) -> dict[str, str]:
    """Return the variables that tell torchrun which node it is."""
    return {"PET_NNODES": str(count), "PET_NODE_RANK": str(rank), "PET_NPROC_PER_NODE": str(nproc)}


def _common(peers: Sequence[Peer], group: int) -> dict[str, str]:
    """Return the variables of all processes of a worker: the rendezvous, the interface and the peers."""
    master = {"MASTER_ADDR": peers[0].address, "MASTER_PORT": str(MASTER_PORT)}
    torchrun = {f"PET_{name}": value for name, value in master.items()}
    own = {
        "TESTBED_WORKER": peers[group].name,
        "TESTBED_SITE": peers[group].site,
        "TESTBED_PEERS": ",".join(f"{peer.name}={peer.address}" for peer in peers),
    }
    interface = {f"{library}_SOCKET_IFNAME": INTERFACE for library in ("GLOO", "NCCL", "TP")}
    return master | torchrun | interface | own | {"PYTHONUNBUFFERED": "1"}
