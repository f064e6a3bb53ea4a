"""What is asked of the process that keeps a network up, over the Unix socket in the network's state folder.

One request a connection: a line of JSON each way. Who may open the socket (root alone) may ask anything.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from socketserver import StreamRequestHandler, UnixStreamServer
from threading import Thread
from types import TracebackType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from testbed.emulation import label

SOCKET = "owner.sock"

#: A swap that starts tens of containers takes this long on a small host, and the others wait for it.
ANSWER_TIMEOUT_S = 300.0
#: So many clients may wait to be heard; beyond that the kernel turns them away at once.
WAITING = 64
#: A client has its request ready; one that sends none must not hold up the others.
REQUEST_TIMEOUT_S = 5.0


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StatusRequest(_Message):
    """What the network is now."""

    verb: Literal["status"] = "status"


class LinkRequest(_Message):
    """Other values for a directed link, as a user writes them; `up` takes its physical pair up or down."""

    verb: Literal["link"] = "link"
    link: str
    values: dict[Literal["rate", "delay", "jitter", "loss"], str] = {}
    up: bool | None = None


class HistoryRequest(_Message):
    """The states that links came to have after the first `since` of them; None is each one's last."""

    verb: Literal["history"] = "history"
    since: int | None = None


class SwapRequest(_Message):
    """Another network, by difference."""

    verb: Literal["swap"] = "swap"
    file: Path


Request = StatusRequest | LinkRequest | HistoryRequest | SwapRequest
_REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="verb")])


class Reply(_Message):
    """What was asked for; or why not: `refused` what was asked is wrong, `failed` it could not be done."""

    value: dict[str, Any] = {}
    refused: str | None = None
    failed: str | None = None


class RequestRefused(ValueError):
    """What was asked cannot be right; the text says what would be."""


class RequestFailed(RuntimeError):
    """The network did not do it; the text says why."""


def standing() -> list[str]:
    """The networks that are up and can be asked."""
    return [name for name in label.networks() if label.owner(name) and _socket(name).exists()]


def ask(network: str, request: Request) -> dict[str, Any]:
    """The answer of the network's owner. RequestRefused or RequestFailed when there is none to what was asked."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_TIMEOUT_S)
        try:
            connection.connect(str(_socket(network)))
            connection.sendall(request.model_dump_json().encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer = Reply.model_validate_json(lines.readline())
        except (OSError, ValidationError) as error:
            raise RequestFailed(
                f"the network {network} does not answer ({error}); `testbed clean` takes it away"
            ) from error
    if answer.refused is not None:
        raise RequestRefused(answer.refused)
    if answer.failed is not None:
        raise RequestFailed(answer.failed)
    return answer.value


class RequestServer:
    """Answers requests one after the other, in a thread of its own; a context manager.

    One thread for all, and no other: the kernel ends a switch's daemons together with the thread that started them,
    so the sites that a swap adds live as long as this does.
    """

    def __init__(self, network: str, answer: Callable[[Request], Reply]) -> None:
        class Handler(StreamRequestHandler):
            timeout = REQUEST_TIMEOUT_S

            def handle(self) -> None:
                try:
                    request = _REQUEST.validate_json(self.rfile.readline())
                except ValidationError as error:
                    reply = Reply(refused=f"this testbed does not know the request: {error}")
                else:
                    reply = answer(request)
                self.wfile.write(reply.model_dump_json().encode() + b"\n")

        path = _socket(network)
        self._server = UnixStreamServer(str(path), Handler, bind_and_activate=False)
        self._server.request_queue_size = WAITING
        self._server.server_bind()
        path.chmod(0o600)  # before anyone can connect
        self._server.server_activate()
        self._thread = Thread(target=self._server.serve_forever, args=(0.1,), name="requests")

    def __enter__(self) -> RequestServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _socket(network: str) -> Path:
    return label.state_folder(network) / SOCKET
