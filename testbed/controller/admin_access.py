"""Who may use the admin side over HTTP: who has its token, from a page of its own or from none.

    http://127.0.0.1:PORT/?token=…   the link that is printed: puts the token into a cookie, and leads to the page
    Authorization: Bearer …          for programs

Any page that is open in a browser on this machine can send requests to 127.0.0.1, by a form or by a name that it lets
point here. So the name that was asked for (`Host`) must be this machine's own; what changes something, and the
WebSocket, must come from a page of this server (`Origin`), or from a program that shows the token itself.
The Unix socket asks for none of this: its mode lets in its owner alone.
"""

from __future__ import annotations

import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

_REMEDY = "open the link that the controller printed, or send its token: Authorization: Bearer TOKEN\n"


class AdminAccess:
    """Lets in what may use `app`: all that comes over a Unix socket, and over HTTP who has the `token`."""

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
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "not allowed"})
        else:
            await refusal(scope, receive, send)

    def _refusal(self, scope: Scope, port: int) -> Response | None:
        """What to answer instead of the app; None where that may."""
        headers = Headers(scope=scope)
        hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        if headers.get("host", "") not in hosts:
            return PlainTextResponse(f"this server is {' or '.join(sorted(hosts))}, and no other\n", 421)
        bearer = self._is_token(headers.get("authorization", "").removeprefix("Bearer "))
        if not (bearer or self._is_token(_cookie(headers, _cookie_name(port)))):
            return self._entry(scope, port) or PlainTextResponse(_REMEDY, 401, {"WWW-Authenticate": "Bearer"})
        origin = headers.get("origin")
        reads = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if origin not in {f"http://{host}" for host in hosts} and (origin is not None or not bearer) and not reads:
            return PlainTextResponse(
                f"not from the page {origin!r}: only this server's own page may ask for that\n", 403
            )
        return None

    def _entry(self, scope: Scope, port: int) -> Response | None:
        """Where the printed link leads: on to the page, with the token where a browser keeps it from other sites."""
        if scope["type"] != "http" or (scope["method"], scope["path"]) != ("GET", "/"):
            return None
        if not self._is_token("".join(parse_qs(scope["query_string"].decode("latin-1")).get("token", []))):
            return None
        response = RedirectResponse("/", 303, {"Referrer-Policy": "no-referrer", "Cache-Control": "no-store"})
        response.set_cookie(_cookie_name(port), self._token, httponly=True, samesite="strict")
        return response

    def _is_token(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode(), self._token.encode())


def _cookie_name(port: int) -> str:
    """Browsers keep the cookies of all ports of a machine in one place."""
    return f"testbed_{port}"


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found else ""
