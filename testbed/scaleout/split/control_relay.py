"""The connection from workers to a controller on another host: over the hosts' network, never over the emulated one.

    worker's container          its host                     the controller's host
    /run/testbed/control.sock - proxy ==== TLS, hosts' network ==== gateway - control/<worker>/control.sock

A worker finds the same socket as on one machine, and the controller hears each worker at the worker's own socket:
neither knows that there are several hosts. A proxy's first line names its worker. The gateway accepts the worker from
its own host alone; certificates at both ends tell which host that is.
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

from testbed.certificates import make_certificates
from testbed.controller.server.member_server import SOCKET
from testbed.emulation.network.namespace import inside
from testbed.emulation.network.share import OWN
from testbed.sockets import AUTHORITY, CERTIFICATE, CONTROLLER, KEY, Tls, peer_name, unix_address

#: The largest piece that is passed on at once; members' messages have some kilobytes.
PIECE_BYTES = 1 << 16
#: The largest first line: a worker's name and the end of line.
MOST_NAME_BYTES = 256
#: The time limit for a connection to the gateway, in seconds. The gateway opens before any proxy, so a host that takes
#: longer has no route to it.
CONNECT_S = 10.0

_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class GatewayAddress:
    """The gateway's address, and a host's credentials for it."""

    address: str
    port: int
    #: The texts of the host's TLS files, by file name.
    credentials: Mapping[str, str]

    def write(self, folder: Path) -> Tls:
        """Write the credentials to a folder that only this user reads, and load them."""
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, text in self.credentials.items():
            (folder / name).touch(mode=0o600)
            (folder / name).write_text(text)
        return Tls(folder)


class _Loop:
    """An event loop in a thread, while the context is entered."""

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
    """Listens at the controller's host while the context is entered, and connects proxies to the controller's sockets.

    Certificates are made for this network alone, in `folder`, and are deleted with it.
    """

    def __init__(self, folder: Path, control: Path, host_of: Mapping[str, str], address: IPv4Address) -> None:
        """Make the certificates.

        Args:
            folder: The network's folder.
            control: The folder of the controller's sockets.
            host_of: Each worker's host.
            address: The address to listen at, on a port of the kernel's choice.
        """
        super().__init__("gateway")
        self._folder, self._control, self._host_of, self._address = folder / "tls", control, host_of, address
        for _ in make_certificates(self._folder, sorted(set(host_of.values()))):
            pass
        self._tls = Tls(self._folder / CONTROLLER)

    def address_for(self, host: str) -> GatewayAddress:
        """Return the open gateway's address with the credentials of a host."""
        own = self._folder / host
        credentials = {name: (own / name).read_text() for name in (AUTHORITY, CERTIFICATE, KEY)}
        return GatewayAddress(str(self._address), self._port, credentials)

    async def _open(self) -> None:
        server = await asyncio.start_server(self._admit, sock=_listening(self._address), ssl=self._tls.server)
        self._port = int(server.sockets[0].getsockname()[1])

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            name = (await reader.readline())[:MOST_NAME_BYTES].decode(errors="replace").strip()
            tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
            if self._host_of.get(name, "") != peer_name(tls) or not peer_name(tls):
                return  # the worker is on another host, or on none
            with contextlib.suppress(OSError):  # the controller has ended
                with unix_address(self._control / name / SOCKET) as path:
                    there = await asyncio.open_unix_connection(path)
                await _join((reader, writer), there)


class ControlProxies(_Loop):
    """Listens at the workers' sockets in a host's folder `control`, and connects the workers through the gateway."""

    def __init__(self, gateway: GatewayAddress, control: Path, workers: Iterable[str], underlay: Path = OWN) -> None:
        """Write the gateway's credentials to disk. Raises TlsError where they are invalid."""
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
            (folder / SOCKET).chmod(0o666)  # the container's user is nobody on the host, and sees this folder alone

    def _through(self, worker: str) -> _Handler:
        async def through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer), contextlib.suppress(OSError):  # no gateway: the connection closes
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


async def _join(one: _Stream, other: _Stream) -> None:
    """Pass bytes on in both directions until either end is closed."""
    with contextlib.closing(other[1]):
        directions = [asyncio.create_task(_pass(one[0], other[1])), asyncio.create_task(_pass(other[0], one[1]))]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # a connection that was reset has ended too
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
