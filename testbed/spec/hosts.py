"""Hosts files: the machines of a cluster, and how each is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from testbed.spec.load import Strict, misfit, read_kind, validate

#: A cluster is started host by host over SSH, and each pair of hosts is measured: of 32 hosts there are 496 pairs.
MOST_HOSTS = 32


def _address(text: str) -> str:
    try:
        address = IPv4Address(text)
    except AddressValueError:
        raise ValueError(
            f"{text!r} is no IPv4 address | the host's on the network between them, such as 10.0.0.1"
        ) from None
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        raise ValueError(f"{text} is no address that other hosts reach | such as 10.0.0.1")
    return text


def _absolute(text: str) -> str:
    if not text.startswith("/") or ".." in text.split("/") or text.rstrip("/") == "":
        raise ValueError(f"{text!r} is no folder's whole path | such as /opt/testbed")
    return text.rstrip("/")


class Host(Strict):
    """A machine: its address on the network between the hosts, how SSH gets there, and the checkout's folder there.

    A `user` who is not root needs sudo without a password: hosts get networks and containers. Without a `key` SSH
    chooses one by its own settings.
    """

    address: Annotated[str, AfterValidator(_address)]
    user: str = Field(default="root", pattern=r"^[a-z_][a-z0-9_.-]{0,31}$")
    port: int = Field(default=22, ge=1, le=65535)
    key: str | None = Field(default=None, min_length=1)
    folder: Annotated[str, Field(pattern=r"^[A-Za-z0-9_./+-]+$"), AfterValidator(_absolute)] = "/opt/testbed"


HostName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")]


class HostsFile(Strict):
    """The hosts of a cluster, by name. `known_hosts` is the file of their keys; SSH's own where it is left out."""

    name: str = Field(default="cluster", pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")
    known_hosts: str | None = Field(default=None, min_length=1)
    hosts: dict[HostName, Host] = Field(min_length=1, max_length=MOST_HOSTS)

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        owners: dict[str, str] = {}
        for name, host in self.hosts.items():
            if other := owners.get(host.address):
                raise misfit(f"hosts.{name}.address", f"is that of {other}", "each machine once")
            owners[host.address] = name
        return self


@dataclass(frozen=True)
class Hosts:
    """A validated hosts file."""

    spec: HostsFile
    file: Path

    @classmethod
    def load(cls, file: Path) -> Self:
        """The hosts in a file; SpecError when it is wrong. No host is asked anything."""
        return cls(validate(HostsFile, read_kind(file, "a hosts file"), file), file)

    @property
    def by_name(self) -> Mapping[str, Host]:
        """The hosts, in their order."""
        return self.spec.hosts

    def path(self, text: str) -> Path:
        """A file that the hosts file names: from its folder on, `~` as the shell has it."""
        return self.file.parent / Path(text).expanduser()
