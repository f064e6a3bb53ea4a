"""Who may use a server on a port of this machine: who has its token, from a page of its own or from none.

    http://127.0.0.1:PORT/#token=…   the link that is opened: what follows the # stays in the browser, which no server,
                                     log or page of others sees; the page keeps it, and shows it as a program does
    Authorization: Bearer …          with each request
    {"token": "…"}                   the first message over a WebSocket, where pages can't set headers

Any page that is open in a browser on this machine can send requests to 127.0.0.1, by a form or by a name that it lets
point here. So the name that was asked for (`Host`) must be this machine's own, the page that asks (`Origin`) of this
server if it is any, and no cookie lets anybody in.
The Unix socket asks for none of this: its mode lets in its owner alone.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

_REMEDY = "open the link to the page anew, or send the token: Authorization: Bearer TOKEN\n"

#: A page has its token at hand; who sends none must not be kept for ever.
TOKEN_TIMEOUT_S = 10.0

#: WebSocket's word for what a server does not allow.
NOT_ALLOWED = 1008


class TokenAccess:
    """Lets in what may use `app`: all that comes over a Unix socket, and over HTTP who has the `token`.

    The page itself, `/` and what is under `/page/`, holds no secret, and is for everybody who finds it.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have the app answer it."""
        server = scope.get("server")
        if scope["type"] == "lifespan" or (server is not None and server[1] is None):  # a Unix socket has no port
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope, server[1] if server else 0)
        if scope["type"] == "websocket":
            await self._let_in_with_first_message(refusal is None, scope, receive, send)
        elif refusal is None:
            await self._app(scope, receive, send)
        else:
            await refusal(scope, receive, send)

    def _refusal(self, scope: Scope, port: int) -> Response | None:
        """What to answer instead of the app; None where that may, once a WebSocket has shown the token."""
        headers = Headers(scope=scope)
        hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        if headers.get("host", "") not in hosts:
            return PlainTextResponse(f"this server is {' or '.join(sorted(hosts))}, and no other\n", 421)
        origin = headers.get("origin")
        if origin is not None and origin not in {f"http://{host}" for host in hosts}:
            return PlainTextResponse(
                f"not from the page {origin!r}: only this server's own page may ask for that\n", 403
            )
        shown = headers.get("authorization", "").removeprefix("Bearer ")
        if scope["type"] == "websocket" or self._is_open(scope) or self._is_token(shown):
            return None
        return PlainTextResponse(_REMEDY, 401, {"WWW-Authenticate": "Bearer"})

    def _is_open(self, scope: Scope) -> bool:
        path = scope["path"]
        return scope["method"] in ("GET", "HEAD") and (path == "/" or path.startswith("/page/"))

    async def _let_in_with_first_message(self, may: bool, scope: Scope, receive: Receive, send: Send) -> None:
        """Take the connection to hear its first message; the app, if it may have it, finds it yet to be accepted."""
        begin = await receive()
        if not may:
            await send({"type": "websocket.close", "code": NOT_ALLOWED, "reason": "not allowed"})
            return
        await send({"type": "websocket.accept"})
        try:
            first = await asyncio.wait_for(receive(), TOKEN_TIMEOUT_S)
        except TimeoutError:
            first = {}
        if not self._is_token(_shown(first)):
            await send({"type": "websocket.close", "code": NOT_ALLOWED, "reason": "the first message shows no token"})
            return
        begun = [begin]

        async def receive_from_the_begin() -> Any:
            return begun.pop() if begun else await receive()

        async def send_once_accepted(message: Any) -> None:
            if message["type"] != "websocket.accept":
                await send(message)

        await self._app(scope, receive_from_the_begin, send_once_accepted)

    def _is_token(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode(), self._token.encode())


def _shown(message: Any) -> str:
    """The token in a WebSocket's message; empty where there is none."""
    try:
        value = json.loads(message.get("text") or "")
    except ValueError:
        return ""
    token = value.get("token") if isinstance(value, dict) else None
    return token if isinstance(token, str) else ""
