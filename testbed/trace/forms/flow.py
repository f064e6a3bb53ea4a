"""Flows of packets, by their addresses and ports."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from testbed.trace.trace import TraceError

TCP, UDP = 6, 17
EXAMPLE = "`10.0.0.1:443->10.0.0.2:51000`, `10.0.0.1->10.0.0.2`, or `*->[2001:db8::2]:443`"

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class End:
    """One end of a flow: an address and a port, each None where any will do."""

    address: Address | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> End:
        """Return the end that a text names: `10.0.0.1:443`, `[2001:db8::1]:443`, `*:443`, or one of them without port.

        Raises:
            ValueError: The text is none of these.
        """
        address, colon, port = text.rpartition(":") if text.count(":") == 1 or "]:" in text else (text, "", "")
        if colon and not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65_536):
            raise ValueError(f"{port!r} is not a port")
        address = address.removeprefix("[").removesuffix("]")
        return cls(None if address == "*" else ip_address(address), int(port) if colon else None)

    def matches(self, other: End) -> bool:
        """Return whether a packet's end, `other`, is this one. An address or a port of None matches any."""
        return self.address in (None, other.address) and self.port in (None, other.port)

    def __str__(self) -> str:
        address = "*" if self.address is None else str(self.address)
        if self.port is None:
            return address
        return f"[{address}]:{self.port}" if ":" in address else f"{address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Flow:
    """The packets from one end to another, in one direction."""

    source: End
    target: End

    @classmethod
    def parse(cls, text: str) -> Flow:
        """Return the flow that is written `A->B`. TraceError where the text is no flow."""
        source, arrow, target = text.partition("->")
        try:
            if not arrow:
                raise ValueError("it has no `->`")
            return cls(End.parse(source.strip()), End.parse(target.strip()))
        except ValueError as error:
            wrong = f"{text[:80]!r} is not a flow: {error}; write it such as {EXAMPLE}"
            raise TraceError(wrong, rule="flow", given=text) from None

    @classmethod
    def of_packet(cls, ip: bytes) -> Flow | None:
        """Return the flow of a packet, given from its IP header on; None where too little of the packet is there."""
        version = ip[0] >> 4 if ip else 0
        if version == 4 and len(ip) >= 20:
            begin, protocol, addresses = (ip[0] & 15) * 4, ip[9], ip[12:20]
            whole = (ip[6] & 0x1F) == 0 and ip[7] == 0  # later fragments begin with data
        elif version == 6 and len(ip) >= 40:
            begin, protocol, addresses, whole = 40, ip[6], ip[8:40], True
        else:
            return None
        has_ports = whole and protocol in (TCP, UDP) and len(ip) >= begin + 4
        return _flow(addresses, ip[begin : begin + 4] if has_ports else b"")

    def matches(self, other: Flow) -> bool:
        """Return whether a packet's flow, `other`, is this one. An address or a port of None matches any."""
        return self.source.matches(other.source) and self.target.matches(other.target)

    def __str__(self) -> str:
        return f"{self.source}->{self.target}"


@lru_cache(maxsize=2**16)
def _flow(addresses: bytes, ports: bytes) -> Flow:
    """Return the flow of a header's bytes, whose halves are the two ends.

    A capture has few flows and many packets of each, so the flows are cached.
    """
    half = len(addresses) // 2
    source, target = (ip_address(each) for each in (addresses[:half], addresses[half:]))
    if not ports:
        return Flow(End(source), End(target))
    return Flow(End(source, int.from_bytes(ports[:2], "big")), End(target, int.from_bytes(ports[2:], "big")))
