"""How workers on other hosts come to the controller on this one: the gateway, and who may come through it."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address
from pathlib import Path
from typing import Self

from testbed.certificates import make_certificates
from testbed.scaleout.split.proxy import ControlGateway, GatewayAddress
from testbed.sockets import AUTHORITY, CERTIFICATE, CONTROLLER, KEY, Tls


class ControlRelay:
    """A context manager: the gateway is open while it is entered. `host_of` has the host of each worker."""

    def __init__(self, folder: Path, control: Path, host_of: Mapping[str, str], address: IPv4Address) -> None:
        """Certificates are made for this network alone, in `folder`, and go with it."""
        self._folder = folder / "tls"
        self._address = address
        for _ in make_certificates(self._folder, sorted(set(host_of.values()))):
            pass
        self._gateway = ControlGateway(address, Tls(self._folder / CONTROLLER), control, host_of)

    def __enter__(self) -> Self:
        self._gateway.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._gateway.__exit__(None, None, None)

    def gateway_for(self, host: str) -> GatewayAddress:
        """What a host needs to come through: it shows that it is that host."""
        own = self._folder / host
        credentials = {name: (own / name).read_text() for name in (AUTHORITY, CERTIFICATE, KEY)}
        return GatewayAddress(str(self._address), self._gateway.port, credentials)
