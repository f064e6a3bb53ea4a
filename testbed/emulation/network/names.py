"""Name resolution on workers: a worker resolves its own name and its peers' names, both ways, and no other name.

The emulated network has no name server. A lookup at this machine's servers would wait 5 s for an answer, once for each
address that a program reverses: torchrun took 33 s to begin instead of 3 s. Therefore workers read a hosts file that
follows the network, and look names up in that file alone: another name is not known ("Name or service not known"), at
once. A refused query at a server would be a temporary failure, after which programs try again.

Programs that do not read nsswitch.conf, such as those of musl (Alpine), ask the server of resolv.conf, which refuses at
once.
"""

from __future__ import annotations

import ctypes
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from testbed.emulation.network.namespace import CLONE_NEWUTS, call

#: The folder of these files, beside the workers' control folders; no worker has this name.
FOLDER = ".names"
HOSTS, RESOLVER, SOURCES = "hosts", "resolv.conf", "nsswitch.conf"
#: The sources for a container, in which no daemon of an image answers for accounts or names.
CONTAINER_SOURCES = "container-nsswitch.conf"
FILES_ALONE = "hosts: files"
DATABASES = ("passwd", "group", "shadow", "hosts", "networks", "protocols", "services", "ethers", "rpc")

#: No server listens at this address, so the kernel refuses each query at once.
RESOLVER_TEXT = "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"

#: Variables that set a proxy, in lower case.
PROXIES = {"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy", "grpc_proxy"}

ETC = Path("/etc")

_CLONE_NEWNS = 0x20000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000


def hosts_text(addresses: Mapping[str, str]) -> str:
    """Return a hosts file for these workers' addresses.

    A socket of both address families reports its peer as `::ffff:` and the address, and programs look that up. This
    address has the name with a dot at its end, so that the name itself leads to the IPv4 address alone: asyncio can't
    listen at the other.
    """
    named = {"localhost": "127.0.0.1", **addresses}
    lines = [line for name, address in named.items() for line in (f"{address} {name}", f"::ffff:{address} {name}.")]
    return "\n".join(lines) + "\n"


def sources_text(own: str) -> str:
    """Return an nsswitch.conf (`own`), changed to look hosts up in files alone.

    A resolver daemon of this machine would answer from its own files instead of the worker's.
    """
    text, found = re.subn(r"(?m)^hosts:.*$", FILES_ALONE, own)
    return text if found else f"{own}\n{FILES_ALONE}\n"


def without_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without this machine's proxies, which are not reachable on the emulated network."""
    return {name: value for name, value in environment.items() if name.lower() not in PROXIES}


class Names:
    """The name-resolution files of one network, in a `control` folder."""

    def __init__(self, control: Path) -> None:
        self._folder = control / FOLDER

    def write(self, addresses: Mapping[str, str]) -> None:
        """Make workers resolve these names. The files are rewritten in place, because containers have them mounted."""
        self._folder.mkdir(exist_ok=True)
        _rewrite(self._folder / HOSTS, hosts_text(addresses))
        _rewrite(self._folder / RESOLVER, RESOLVER_TEXT)
        _rewrite(self._folder / CONTAINER_SOURCES, "".join(f"{name}: files\n" for name in DATABASES))
        if (ETC / SOURCES).exists():
            _rewrite(self._folder / SOURCES, sources_text((ETC / SOURCES).read_text()))

    def mounts(self) -> dict[str, Path]:
        """Return the files by their paths in a container; empty before the first `write`."""
        present = _present(self._folder, (HOSTS, RESOLVER))
        return {**present, str(ETC / SOURCES): self._folder / CONTAINER_SOURCES} if present else {}

    def entering(self) -> list[str]:
        """Return the command prefix that gives a command these files, in a mount namespace of its own."""
        files = _present(self._folder, (HOSTS, RESOLVER, SOURCES))
        binds = [shlex.join(["mount", "--bind", str(file), at]) for at, file in files.items() if Path(at).exists()]
        return ["unshare", "--mount", "--propagation", "slave", "sh", "-ec", "; ".join([*binds, 'exec "$@"']), "sh"]

    def take_on(self, host: str, domain: str) -> None:
        """Give this thread and its children these files, a host name, and a domain name, by which clean-up finds them.

        They get a mount namespace and a UTS namespace of their own. Later mounts of this machine are visible there, and
        mounts made there are visible nowhere else.
        """
        call("unshare", _CLONE_NEWNS | CLONE_NEWUTS)
        call("sethostname", host.encode(), len(host))
        call("setdomainname", domain.encode(), len(domain))
        _mount(None, Path("/"), _MS_REC | _MS_SLAVE)
        for where, file in _present(self._folder, (HOSTS, RESOLVER, SOURCES)).items():
            if Path(where).exists():
                _mount(file, Path(where), _MS_BIND)


def _present(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    return {str(ETC / name): folder / name for name in names if (folder / name).exists()}


def _mount(source: Path | None, target: Path, flags: int) -> None:
    told = None if source is None else str(source).encode()
    call("mount", told, str(target).encode(), None, ctypes.c_ulong(flags), None, about=str(target))


def _rewrite(file: Path, text: str) -> None:
    with file.open("r+b" if file.exists() else "wb") as opened:
        opened.write(text.encode())
        opened.truncate()
    file.chmod(0o644)
