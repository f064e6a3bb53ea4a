"""The names that programs on workers can resolve: each worker's own and its peers', both ways, and no others.

No name server is on the emulated network. A lookup that went to this machine's servers would wait 5 s for an answer,
once for each address that a program reverses: torchrun took 33 s to begin, where it takes 3 s. So workers read a hosts
file of the network's, which follows it, and a resolver configuration that refuses every other name at once.
"""

from __future__ import annotations

import ctypes
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from testbed.emulation.network.namespace import CLONE_NEWUTS, call

#: The folder of these files, beside the workers' control folders, of which none is called so.
FOLDER = ".names"
HOSTS, RESOLVER, SOURCES = "hosts", "resolv.conf", "nsswitch.conf"

#: Nothing listens there, so the kernel refuses what is asked.
RESOLVER_TEXT = "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"

#: Variables by which programs look for proxies, in small letters.
PROXIES = {"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy", "grpc_proxy"}

ETC = Path("/etc")

_CLONE_NEWNS = 0x20000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000


def hosts_text(addresses: Mapping[str, str]) -> str:
    """Return a hosts file for these workers' addresses.

    A socket that takes both families reports its peer as `::ffff:` and the address, which is reversed as it stands.
    """
    lines = ["127.0.0.1 localhost"]
    lines += [f"{prefix}{address} {name}" for name, address in addresses.items() for prefix in ("", "::ffff:")]
    return "\n".join(lines) + "\n"


def sources_text(own: str) -> str:
    """Return an nsswitch.conf as `own`, by which hosts are looked up in files and by DNS alone: a resolver daemon of
    this machine would answer by its own files, not by the worker's."""
    return re.sub(r"(?m)^hosts:.*$", "hosts: files dns", own)


def without_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the proxies of this machine, none of which is on the emulated network."""
    return {name: value for name, value in environment.items() if name.lower() not in PROXIES}


class Names:
    """The files of one network, in a `control` folder."""

    def __init__(self, control: Path) -> None:
        self._folder = control / FOLDER

    def write(self, addresses: Mapping[str, str]) -> None:
        """Have workers resolve these names. The files stay the same ones, since containers have them mounted."""
        self._folder.mkdir(exist_ok=True)
        _rewrite(self._folder / HOSTS, hosts_text(addresses))
        _rewrite(self._folder / RESOLVER, RESOLVER_TEXT)
        if (ETC / SOURCES).exists():
            _rewrite(self._folder / SOURCES, sources_text((ETC / SOURCES).read_text()))

    def mounts(self) -> dict[str, Path]:
        """Return where a container sees which file; nothing before any was written."""
        return _present(self._folder, (HOSTS, RESOLVER))

    def entering(self) -> list[str]:
        """Return the words before a command that give it these files, in a mount namespace of its own."""
        files = _present(self._folder, (HOSTS, RESOLVER, SOURCES))
        binds = [shlex.join(["mount", "--bind", str(file), at]) for at, file in files.items() if Path(at).exists()]
        return ["unshare", "--mount", "--propagation", "slave", "sh", "-ec", "; ".join([*binds, 'exec "$@"']), "sh"]

    def take_on(self, host: str, domain: str) -> None:
        """Give this thread, and all that it starts, a host's name, a domain by which they are found, and these files.

        They get a mount namespace and a UTS namespace of their own. Mounts that this machine gets later are seen there,
        and what is mounted there is seen nowhere else.
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
