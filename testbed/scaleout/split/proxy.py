"""The workers' way to a controller on another host: over the hosts' network, never over the emulated one.

    worker's container          its host                     the controller's host
    /run/testbed/control.sock - proxy ==== TLS, hosts' network ==== gateway - control/<worker>/control.sock

A worker finds the socket that it finds on one machine, and the controller hears it where it hears that worker: so
neither knows of more than one host. A proxy says once whose it is; the gateway takes it from the host that has that
worker, which both ends' certificates tell, and from no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed.controller.server.member_server import SOCKET
from testbed.emulation.network.namespace import inside
from testbed.emulation.network.share import OWN
from testbed.sockets import CONTROLLER, Tls, peer_name, unix_address

#: A piece on its way; messages of members have some kilobytes.
PIECE_BYTES = 1 << 16
#: A name and its end of line.
MOST_NAME_BYTES = 256
#: The gateway is there before any proxy: a host that cannot reach it has no way there.
CONNECT_S = 10.0

_Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class GatewayAddress:
    """Where the gateway is, and the files by which a host shows who it is, by their names in a folder for TLS."""

    address: str
    port: int
    credentials: Mapping[str, str]

    def write(self, folder: Path) -> Tls:
        """The credentials, written where only this user reads them."""
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, text in self.credentials.items():
            (folder / name).touch(mode=0o600)
            (folder / name).write_text(text)
        return Tls(folder)


class _Loop:
    """An event loop in a thread of its own, between entry and leaving."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _open(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


class ControlGateway(_Loop):
    """At the controller's host: takes proxies' connections to the controller's sockets in `control`.

    `host_of` has each worker's host. Entered, it listens at `address` on a `port` of the kernel's choice.
    """

    port: int

    def __init__(
        self, address: IPv4Address, tls: Tls, control: Path, host_of: Mapping[str, str], underlay: Path = OWN
    ) -> None:
        super().__init__("gateway")
        self._address, self._tls, self._control = address, tls, control
        self._host_of = host_of
        self._underlay = underlay

    async def _open(self) -> None:
        listener = inside(self._underlay, lambda: _listening(self._address))
        server = await asyncio.start_server(self._admit, sock=listener, ssl=self._tls.server)
        self.port = int(server.sockets[0].getsockname()[1])

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            name = (await reader.readline())[:MOST_NAME_BYTES].decode(errors="replace").strip()
            tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
            if self._host_of.get(name, "") != peer_name(tls) or not peer_name(tls):
                return  # of another host, or of nobody's
            with contextlib.suppress(OSError):  # the controller has ended
                with unix_address(self._control / name / SOCKET) as path:
                    there = await asyncio.open_unix_connection(path)
                await _join((reader, writer), there)


class ControlProxies(_Loop):
    """At a host of workers: a socket for each in its folder of `control`, which leads through the gateway."""

    def __init__(self, gateway: GatewayAddress, control: Path, workers: Iterable[str], underlay: Path = OWN) -> None:
        """TlsError where the credentials are none."""
        super().__init__("proxies")
        self._gateway = gateway
        self._control = control
        self._workers = tuple(workers)
        self._underlay = underlay
        self._tls = gateway.write(control.parent / "tls")

    async def _open(self) -> None:
        for worker in self._workers:
            folder = self._control / worker
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)
            with unix_address(folder / SOCKET) as path:
                await asyncio.start_unix_server(self._through(worker), path)
            (folder / SOCKET).chmod(0o666)  # the container's user is nobody here, and sees this folder alone

    def _through(self, worker: str) -> _Handler:
        async def through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer), contextlib.suppress(OSError):  # no gateway: the worker finds it closed
                there = await asyncio.wait_for(self._open_gateway(), CONNECT_S)
                if peer_name(there[1].get_extra_info("ssl_object")) != CONTROLLER:
                    there[1].close()
                    return
                there[1].write(worker.encode() + b"\n")
                await _join((reader, writer), there)

        return through

    async def _open_gateway(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection = await asyncio.to_thread(
            inside, self._underlay, lambda: _connected(self._gateway.address, self._gateway.port)
        )
        return await asyncio.open_connection(sock=connection, ssl=self._tls.client, server_hostname=CONTROLLER)


_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _join(one: _Stream, other: _Stream) -> None:
    """Pass on what comes, both ways, until either end is closed."""
    with contextlib.closing(other[1]):
        ways = [asyncio.create_task(_pass(one[0], other[1])), asyncio.create_task(_pass(other[0], one[1]))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # an end that went without a word is an end
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()


def _listening(address: IPv4Address) -> socket.socket:
    opened = socket.create_server((str(address), 0))
    opened.setblocking(False)
    return opened


def _connected(address: str, port: int) -> socket.socket:
    opened = socket.create_connection((address, port), CONNECT_S)
    opened.setblocking(False)
    return opened
