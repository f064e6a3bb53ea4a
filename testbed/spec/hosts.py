"""Hosts files: the machines of a cluster, and how each is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from testbed.spec.load import read_kind
from testbed.spec.model import Strict, misfit, validate

#: A cluster is started host by host over SSH, and each pair of hosts is measured: 32 hosts make 496 pairs.
MOST_HOSTS = 32


def _address(text: str) -> str:
    remedy = "the host's address on the network between the hosts, such as 10.0.0.1"
    try:
        address = IPv4Address(text)
    except AddressValueError:
        raise ValueError(f"{text!r} is not an IPv4 address | {remedy}") from None
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        raise ValueError(f"other hosts can't reach the address {text} | {remedy}")
    return text


def _absolute(text: str) -> str:
    if not text.startswith("/") or ".." in text.split("/") or text.rstrip("/") == "":
        raise ValueError(f"{text!r} is not the absolute path of a folder | a path such as /opt/testbed")
    return text.rstrip("/")


def _in_known_home(text: str) -> str:
    try:
        Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"{text!r}: this machine has no such home folder | a path such as ~/.ssh/id_ed25519") from None
    return text


KeyFile = Annotated[str, Field(min_length=1), AfterValidator(_in_known_home)]


class Host(Strict):
    """A machine of the cluster: its address, and how SSH reaches it."""

    address: Annotated[str, AfterValidator(_address)]
    """The machine's IPv4 address on the network between the hosts."""
    user: str = Field(default="root", pattern=r"^[a-z_][a-z0-9_.-]{0,31}$")
    """The user for SSH. A user other than root needs sudo without a password, to make networks and containers."""
    port: int = Field(default=22, ge=1, le=65535)
    """The port of SSH."""
    key: KeyFile | None = None
    """The file of the private key; by default SSH chooses a key by its own settings."""
    folder: Annotated[str, Field(pattern=r"^[A-Za-z0-9_./+-]+$"), AfterValidator(_absolute)] = "/opt/testbed"
    """The absolute path of the testbed's checkout on the machine."""


HostName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")]


class HostsFile(Strict):
    """A hosts file as it is written."""

    name: str = Field(default="cluster", pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")
    """The name of the cluster."""
    known_hosts: KeyFile | None = None
    """The file of the hosts' public keys; by default SSH's own file."""
    hosts: dict[HostName, Host] = Field(min_length=1)
    """Name → host."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len(self.hosts) > MOST_HOSTS:
            raise misfit("hosts", f"the file has {len(self.hosts)} hosts", f"1 to {MOST_HOSTS} hosts")
        owners: dict[str, str] = {}
        for name, host in self.hosts.items():
            if other := owners.get(host.address):
                raise misfit(f"hosts.{name}.address", f"{other} has the same address", "each machine once")
            owners[host.address] = name
        return self


@dataclass(frozen=True)
class Hosts:
    """The hosts of a hosts file, validated."""

    spec: HostsFile
    file: Path

    @classmethod
    def load(cls, file: Path) -> Self:
        """Return the hosts in a file, without connecting to any. SpecError: the file is wrong."""
        return cls(validate(HostsFile, read_kind(file, "a hosts file"), file), file)

    @property
    def by_name(self) -> Mapping[str, Host]:
        """The hosts by name, in the order of the file."""
        return self.spec.hosts

    def path(self, text: str) -> Path:
        """Return a path in the hosts file, resolved against the file's folder; `~` is expanded as in a shell."""
        return self.file.parent / Path(text).expanduser()
