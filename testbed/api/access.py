"""Access to a server on a port of this machine: a client needs the token, and a page must be the server's own.

    http://127.0.0.1:PORT/#token=…   the link that the user opens: the part after # stays in the browser, unseen by
                                     servers, logs and other pages; the page stores it and sends it as programs do
    Authorization: Bearer …          the token in each request
    {"token": "…"}                   the first message over a WebSocket, where pages can't set headers

Any page that is open in a browser on this machine can send requests to 127.0.0.1, by a form or through a host name
that points here. So `Host` must name this machine, `Origin`, if there is one, must be this server's, and cookies are
ignored.
The Unix socket needs no token: its file mode admits only its owner.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

_REMEDY = (
    "the request has no valid token; open the link to the page again, or send the header Authorization: Bearer TOKEN\n"
)

#: Seconds that a WebSocket may take to send its token; a page has its token at hand.
TOKEN_TIMEOUT_S = 10.0

#: The port of HTTP, which browsers leave out of `Host` and `Origin`.
HTTP_PORT = 80

#: WebSocket's close code for a policy violation (RFC 6455, section 7.4.1).
NOT_ALLOWED = 1008


class TokenAccess:
    """Passes on to `app` every request over a Unix socket, and over TCP the requests that carry the `token`.

    The page itself, `/` and everything under `/page/`, holds no secret and needs no token.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if it came over a Unix socket, shows the token or asks for the page; else refuse it."""
        server = scope.get("server")
        if scope["type"] == "lifespan" or (server is not None and server[1] is None):  # a Unix socket has no port
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope, server[1] if server else 0)
        if scope["type"] == "websocket":
            await self._accept_with_first_message(refusal is None, scope, receive, send)
        elif refusal is None:
            await self._app(scope, receive, send)
        else:
            await refusal(scope, receive, send)

    def _refusal(self, scope: Scope, port: int) -> Response | None:
        """Return the refusal of a request, or None if the app may answer it (a WebSocket still sends its token)."""
        headers = Headers(scope=scope)
        names = ("127.0.0.1", "localhost")
        hosts = {f"{name}:{port}" for name in names} | ({*names} if port == HTTP_PORT else set())
        if headers.get("host", "") not in hosts:
            return PlainTextResponse(f"this server is {' or '.join(sorted(hosts))}; use one of these names\n", 421)
        origin = headers.get("origin")
        if origin is not None and origin not in {f"http://{host}" for host in hosts}:
            return PlainTextResponse(
                f"the page {origin!r} may not use this server; only the server's own page may\n", 403
            )
        shown = headers.get("authorization", "").removeprefix("Bearer ")
        if scope["type"] == "websocket" or self._is_open(scope) or self._is_token(shown):
            return None
        return PlainTextResponse(_REMEDY, 401, {"WWW-Authenticate": "Bearer"})

    def _is_open(self, scope: Scope) -> bool:
        path = scope["path"]
        return scope["method"] in ("GET", "HEAD") and (path == "/" or path.startswith("/page/"))

    async def _accept_with_first_message(self, allowed: bool, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the token in a WebSocket's first message, then pass the socket on to the app, which accepts it itself.

        A socket that is not `allowed`, because of its host or origin, is refused at once.
        """
        begin = await receive()
        if not allowed:
            await send({"type": "websocket.close", "code": NOT_ALLOWED, "reason": "not allowed"})
            return
        await send({"type": "websocket.accept"})
        try:
            first = await asyncio.wait_for(receive(), TOKEN_TIMEOUT_S)
        except TimeoutError:
            first = {}
        if not self._is_token(_shown(first)):
            await send(
                {"type": "websocket.close", "code": NOT_ALLOWED, "reason": "the first message holds no valid token"}
            )
            return
        begun = [begin]

        async def receive_from_the_begin() -> Any:
            return begun.pop() if begun else await receive()

        async def send_once_accepted(message: Any) -> None:
            if message["type"] != "websocket.accept":
                await send(message)

        await self._app(scope, receive_from_the_begin, send_once_accepted)

    def _is_token(self, shown: str) -> bool:
        # JSON may hold half of a surrogate pair, which UTF-8 can't encode.
        return hmac.compare_digest(shown.encode(errors="replace"), self._token.encode())


def _shown(message: Any) -> str:
    try:
        value = json.loads(message.get("text") or "")
    except (ValueError, RecursionError):
        return ""
    token = value.get("token") if isinstance(value, dict) else None
    return token if isinstance(token, str) else ""
