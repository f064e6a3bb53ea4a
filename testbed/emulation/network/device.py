"""Netlink requests about interfaces, their addresses and neighbours, and routes.

Existing interfaces are named by index (`Netlink.index`), new ones by name.
"""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

from testbed.emulation.network.netlink import CREATE, EXCLUSIVE, REPLACE, NetlinkRequest, attribute

_NEW_LINK, _DELETE_LINK, _SET_LINK, _NEW_ADDRESS, _NEW_ROUTE, _DELETE_ROUTE, _NEW_NEIGHBOUR = 16, 17, 19, 20, 24, 25, 28
_MAC, _NAME, _MTU, _MASTER, _PORT, _KIND_OF_LINK, _NAMESPACE_OF, _NAMESPACE = 1, 3, 4, 10, 12, 18, 19, 28
_TUNNEL_ID, _REMOTE, _LOCAL_END, _LEARNING, _UDP_PORT, _DONT_FRAGMENT = 1, 2, 4, 7, 15, 29
_KIND, _OF_KIND, _PEER, _ISOLATED, _NESTED = 1, 2, 1, 33, 0x8000
_ADDRESS, _LOCAL = 1, 2
_DESTINATION, _GATEWAY, _SOURCE = 1, 5, 7
_NEIGHBOUR, _NEIGHBOUR_MAC = 1, 2
_UP = 1
_MAIN_TABLE, _STATIC, _EVERYWHERE, _NOWHERE, _UNICAST = 254, 4, 0, 255, 1
_PERMANENT = 0x80

_INTERFACE = struct.Struct("=BxHiII")
_ADDRESS_OF = struct.Struct("=BBBBI")
_ROUTE = struct.Struct("=BBBBBBBBI")
_NEIGHBOUR_OF = struct.Struct("=BxxxiHBB")


def _interface(index: int = 0, flags: int = 0, family: int = socket.AF_UNSPEC) -> bytes:
    return _INTERFACE.pack(family, 0, index, flags, flags)


def _text(value: str) -> bytes:
    return value.encode() + b"\0"


def _mac(address: str) -> bytes:
    return bytes.fromhex(address.replace(":", ""))


def _named(name: str, mac: str | None) -> bytes:
    return attribute(_NAME, _text(name)) + (attribute(_MAC, _mac(mac)) if mac else b"")


def _made(head: bytes, kind: str, of_kind: bytes = b"") -> NetlinkRequest:
    what = attribute(_KIND, _text(kind)) + attribute(_OF_KIND | _NESTED, of_kind)
    return NetlinkRequest(_NEW_LINK, CREATE | EXCLUSIVE, _interface() + head + attribute(_KIND_OF_LINK | _NESTED, what))


def veth(name: str, mac: str | None, peer: str, peer_mac: str | None, namespace: int) -> NetlinkRequest:
    """Return the request for a pair of interfaces, both down: `name` here, `peer` in the namespace of a descriptor.

    Without a MAC address, the kernel draws one.
    """
    there = _interface() + _named(peer, peer_mac) + attribute(_NAMESPACE, struct.pack("=I", namespace))
    return _made(_named(name, mac), "veth", attribute(_PEER | _NESTED, there))


def vxlan(
    name: str, mac: str, pid: int, number: int, local: IPv4Address, remote: IPv4Address, port: int
) -> NetlinkRequest:
    """Return the request for a tunnel's end, down, in a process's namespace; its UDP socket is in this namespace.

    It learns no addresses, since there is only one other end, and sets "don't fragment": a packet that is too long is
    lost and counted as lost.
    """
    tunnel = attribute(_TUNNEL_ID, struct.pack("=I", number)) + attribute(_REMOTE, remote.packed)
    tunnel += attribute(_LOCAL_END, local.packed) + attribute(_LEARNING, b"\0")
    tunnel += attribute(_UDP_PORT, struct.pack("!H", port)) + attribute(_DONT_FRAGMENT, b"\1")
    return _made(_named(name, mac) + attribute(_NAMESPACE_OF, struct.pack("=I", pid)), "vxlan", tunnel)


def bridge(name: str, mac: str | None = None) -> NetlinkRequest:
    """Return the request for a bridge, down. Without a MAC address it takes the smallest one of its ports."""
    return _made(_named(name, mac), "bridge")


def up(index: int) -> NetlinkRequest:
    """Return the request to bring an interface up."""
    return NetlinkRequest(_SET_LINK, 0, _interface(index, _UP))


def mac(index: int, address: str) -> NetlinkRequest:
    """Return the request to set an interface's MAC address."""
    return NetlinkRequest(_SET_LINK, 0, _interface(index) + attribute(_MAC, _mac(address)))


def mtu(index: int, value: int) -> NetlinkRequest:
    """Return the request to set an interface's MTU in bytes."""
    return NetlinkRequest(_SET_LINK, 0, _interface(index) + attribute(_MTU, struct.pack("=I", value)))


def plugged(index: int, into: int) -> NetlinkRequest:
    """Return the request to make the interface `index` a port of the bridge `into`."""
    return NetlinkRequest(_SET_LINK, 0, _interface(index) + attribute(_MASTER, struct.pack("=I", into)))


def isolated(index: int) -> NetlinkRequest:
    """Return the request to isolate a bridge's port: the bridge passes nothing between two isolated ports."""
    port = attribute(_PORT | _NESTED, attribute(_ISOLATED, b"\1"))
    return NetlinkRequest(_SET_LINK, 0, _interface(index, family=socket.AF_BRIDGE) + port)


def gone(index: int) -> NetlinkRequest:
    """Return the request to remove an interface and its peer."""
    return NetlinkRequest(_DELETE_LINK, 0, _interface(index))


def address(index: int, value: IPv4Interface) -> NetlinkRequest:
    """Return the request to add an address to an interface."""
    body = _ADDRESS_OF.pack(socket.AF_INET, value.network.prefixlen, 0, 0, index)
    body += attribute(_LOCAL, value.packed) + attribute(_ADDRESS, value.packed)
    return NetlinkRequest(_NEW_ADDRESS, CREATE | EXCLUSIVE, body)


def neighbour(index: int, of: IPv4Address, at: str) -> NetlinkRequest:
    """Return the request to map the IP address `of` to the MAC address `at` on an interface, permanently."""
    body = _NEIGHBOUR_OF.pack(socket.AF_INET, index, _PERMANENT, 0, 0)
    body += attribute(_NEIGHBOUR, of.packed) + attribute(_NEIGHBOUR_MAC, _mac(at))
    return NetlinkRequest(_NEW_NEIGHBOUR, CREATE | REPLACE, body)


def route(to: IPv4Network, via: IPv4Address, source: IPv4Address | None = None) -> NetlinkRequest:
    """Return the request to set the route to a network, which replaces an earlier route.

    `source` is the source address of packets that begin here.
    """
    body = _ROUTE.pack(socket.AF_INET, to.prefixlen, 0, 0, _MAIN_TABLE, _STATIC, _EVERYWHERE, _UNICAST, 0)
    body += _to(to) + attribute(_GATEWAY, via.packed)
    if source is not None:
        body += attribute(_SOURCE, source.packed)
    return NetlinkRequest(_NEW_ROUTE, CREATE | REPLACE, body)


def no_route(to: IPv4Network) -> NetlinkRequest:
    """Return the request to remove the route to a network."""
    body = _ROUTE.pack(socket.AF_INET, to.prefixlen, 0, 0, _MAIN_TABLE, 0, _NOWHERE, 0, 0)
    return NetlinkRequest(_DELETE_ROUTE, 0, body + _to(to))


def _to(network: IPv4Network) -> bytes:
    return attribute(_DESTINATION, network.network_address.packed) if network.prefixlen else b""
