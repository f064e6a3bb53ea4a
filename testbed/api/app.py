"""The API as a FastAPI application: `/api/v1/…`, described by OpenAPI at `/api/v1/openapi.json`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Response, WebSocket, WebSocketDisconnect
from fastapi import Request as HttpCall
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.routing import compile_path

from testbed import errors
from testbed.api.models import (
    EventResource,
    HostResource,
    LinkHistory,
    LinkPatch,
    LinkResource,
    NetworkStatus,
    ProblemAnswer,
    RequestResult,
    SiteResource,
    TrafficResource,
)
from testbed.api.requests import (
    CANNOT,
    FAILED,
    MISSING,
    NOT_HERE,
    REQUESTS,
    STALE,
    UNREADABLE,
    WRONG,
    ApiProblem,
    ChangeLinks,
    HttpRequest,
    Request,
)
from testbed.api.stream import Follower, StateFeed
from testbed.api.subject import Section, Subject
from testbed.errors import ending_of
from testbed.link import NoSuchLink, find_link

PREFIX = "/api/v1"

DESCRIPTION = (
    "Read and change a network that is up or an experiment that runs. Times are Unix seconds, rates bit/s of frames. "
    "The state as it changes is at the WebSocket `/api/v1/stream`, metrics for Prometheus are at `/metrics`."
)

PAGE = Path(__file__).with_name("page")
POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

METHOD_NOT_ALLOWED = 405

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the refusals of a route, for OpenAPI."""
    return {status: {"model": ProblemAnswer} for status in statuses}


def make_app(subject: Subject, feed: StateFeed) -> FastAPI:
    """Return the application that serves a subject; it runs on the feed's event loop."""
    app = FastAPI(
        title="testbed",
        description=DESCRIPTION,
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{PREFIX}/openapi.json",
        responses=refusals(UNREADABLE, WRONG),
    )
    app.add_exception_handler(ApiProblem, _in_words)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(MISSING, _not_there)
    app.add_exception_handler(METHOD_NOT_ALLOWED, _not_so)
    app.add_exception_handler(Exception, _unforeseen)
    app.include_router(_state_of(subject), prefix=PREFIX)
    for router in (_links_of(subject), _requests_of(subject)):
        app.include_router(router, prefix=PREFIX, dependencies=[Depends(_check_text)])
    _add_metrics(app, subject)
    _add_stream(app, feed)
    _add_page(app)
    return app


async def _check_text(call: HttpCall) -> None:
    r"""Refuse JSON that escapes half a character, such as "\ud800": no answer and no record can hold it."""
    try:
        json.dumps(json.loads(await call.body()), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ApiProblem(UNREADABLE, r"the body has half a character (\ud800 to \udfff alone); write both") from None
    except (ValueError, RecursionError):
        return  # the body is not JSON; the route refuses it with the place of the error


def _state_of(subject: Subject) -> APIRouter:
    router = APIRouter(tags=["state"])

    async def section(name: Section) -> Mapping[str, Any]:
        return (await asyncio.to_thread(subject.state)).get(name, {})

    @router.get("/status")
    async def status() -> NetworkStatus:
        """Return what the API serves, with its hosts and links."""
        return await asyncio.to_thread(subject.status)

    @router.get("/sites")
    async def sites() -> dict[str, SiteResource]:
        """Return the sites by name."""
        return dict(await section("sites"))

    @router.get("/workers")
    async def workers() -> dict[str, HostResource]:
        """Return the workers by name."""
        return {name: host for name, host in (await section("hosts")).items() if host["kind"] == "worker"}

    @router.get("/recording", response_model=dict[str, Any], responses=refusals(NOT_HERE))
    async def recording() -> Response:
        """Return the whole recording of a run that is over, several megabytes of JSON; `testbed view` serves one."""
        return Response(await asyncio.to_thread(subject.recording), media_type="application/json")

    @router.get("/traffic")
    async def traffic() -> dict[str, TrafficResource]:
        """Return the packets and bytes that each link carried and dropped since it was made, by the link's name."""
        return dict(await section("traffic"))

    @router.get("/events")
    async def events() -> list[EventResource]:
        """Return the events so far, the oldest first."""
        return list((await section("events")).values())

    @router.get("/training")
    async def training() -> dict[str, Any]:
        """Return the state of a run's training: round, metrics, members and estimates; empty for a network."""
        return dict(await section("training"))

    @router.get("/plans")
    async def plans() -> dict[str, dict[str, Any]]:
        """Return the plans of a run by epoch, each with its swap."""
        return dict(await section("plans"))

    @router.get("/rounds")
    async def rounds() -> list[dict[str, Any]]:
        """Return the rounds of a run that are complete, with seconds and metrics."""
        return list((await section("rounds")).values())

    @router.get("/decisions")
    async def decisions() -> list[dict[str, Any]]:
        """Return the controller's decisions about plans, the oldest first."""
        return list((await section("decisions")).values())

    return router


def _links_of(subject: Subject) -> APIRouter:
    router = APIRouter(prefix="/links", tags=["links"])

    async def links() -> dict[str, Any]:
        return dict((await asyncio.to_thread(subject.state))["links"])

    async def named(written: str) -> str:
        try:
            return find_link(written, await links())
        except NoSuchLink as error:
            raise ApiProblem(MISSING, str(error)) from None

    async def answer(name: str, response: Response) -> Any:
        found = await links()
        if name not in found:  # a swap took it away meanwhile
            raise ApiProblem(MISSING, f"there is no link {name} any more; write one of {', '.join(sorted(found))}")
        response.headers["ETag"] = f'"{found[name]["tag"]}"'
        return found[name]

    @router.get("")
    async def every() -> dict[str, LinkResource]:
        """Return the directed links by name."""
        return await links()

    @router.patch("", responses=refusals(FAILED, MISSING, STALE))
    async def change_several(patches: dict[str, LinkPatch]) -> dict[str, LinkResource]:
        """Change several links at once: all of them, or none if a change is refused. Return the changed links."""
        written = [(await named(name), patch) for name, patch in patches.items()]
        patches = dict(written)
        if len(patches) < len(written):
            raise ApiProblem(WRONG, "the request names a link twice; write each link once")
        await done(subject, ChangeLinks(links=patches))
        return {name: link for name, link in (await links()).items() if name in patches}

    @router.get("/{name}", responses=refusals(MISSING))
    async def one(name: str, response: Response) -> LinkResource:
        """Return one link; its tag is the ETag."""
        return LinkResource.model_validate(await answer(await named(name), response))

    @router.patch("/{name}", responses=refusals(FAILED, MISSING, STALE))
    async def change(
        name: str, patch: LinkPatch, response: Response, if_match: Annotated[str | None, Header()] = None
    ) -> LinkResource:
        """Change one link; with If-Match, only if its tag is still that one. Return the link."""
        if if_match is not None and if_match != "*":
            patch = patch.model_copy(update={"tag": if_match.strip('"')})
        name = await named(name)
        await done(subject, ChangeLinks(links={name: patch}))
        return LinkResource.model_validate(await answer(name, response))

    return router


def _requests_of(subject: Subject) -> APIRouter:
    router = APIRouter(tags=["requests"], responses=refusals(FAILED, NOT_HERE, MISSING))

    @router.get("/history")
    async def history(since: int | None = None) -> LinkHistory:
        """Return the states that links have had after the first `since`; without it, the last state of each link."""
        return await asyncio.to_thread(subject.history, since)

    for kind in REQUESTS:
        if kind is not ChangeLinks:
            _add_request(router, subject, kind)
    return router


def _add_request(router: APIRouter, subject: Subject, kind: type[HttpRequest]) -> None:
    """Add the route of a request. Its fields are all in the path, or all in the body."""
    method, path = kind.ROUTE

    async def ask(request: Any) -> RequestResult:
        return RequestResult(result=await done(subject, request))

    ask.__annotations__ = {"request": Annotated[kind, Depends()] if "{" in path else kind, "return": RequestResult}
    ask.__doc__ = kind.__doc__
    if "{" not in path and not any(field.is_required() for field in kind.model_fields.values()):
        ask.__defaults__ = (kind(),)  # the body may be left out
    router.add_api_route(path, ask, methods=[method], name=kind.__name__)


def _add_metrics(app: FastAPI, subject: Subject) -> None:
    @app.api_route("/metrics", methods=["GET", "HEAD"], include_in_schema=False)
    async def metrics() -> Response:
        return Response(await asyncio.to_thread(subject.metrics), media_type=PROMETHEUS_TEXT)


def _add_stream(app: FastAPI, feed: StateFeed) -> None:
    @app.websocket(f"{PREFIX}/stream")
    async def stream(socket: WebSocket) -> None:
        await socket.accept()
        with feed.following() as follower:
            heard = asyncio.create_task(_hear(socket, follower))
            try:
                while not heard.done():
                    message = asyncio.create_task(follower.next())
                    await asyncio.wait({heard, message}, return_when=asyncio.FIRST_COMPLETED)
                    if not message.done():
                        message.cancel()
                        break
                    with suppress(WebSocketDisconnect):  # `heard` ends then
                        await socket.send_json(message.result())
            finally:
                heard.cancel()


class PageFiles(StaticFiles):
    """The page's files. A browser asks each time whether one changed: another version may serve at the same port."""

    def file_response(self, *given: Any, **named: Any) -> Response:
        """Return a file, or the answer that it has not changed."""
        response = super().file_response(*given, **named)
        response.headers["Cache-Control"] = "no-cache"
        return response


def _add_page(app: FastAPI) -> None:
    """Add the page's files. They fetch nothing from other servers, and the policy forbids it."""
    app.mount("/page", PageFiles(directory=PAGE))

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(
            PAGE / "index.html", headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store"}
        )


async def _hear(socket: WebSocket, follower: Follower) -> None:
    """Read a follower's messages until it disconnects: each asks for a snapshot."""
    while (await socket.receive())["type"] == "websocket.receive":
        follower.want_snapshot()


async def done(subject: Subject, request: Request) -> dict[str, Any]:
    """Carry out a request in the subject's thread, and return its result.

    Raises:
        ApiProblem: The request was not carried out.
    """
    try:
        call = subject.executor.submit(subject.do, request)
    except RuntimeError:
        raise ApiProblem(NOT_HERE, "the network or run is ending and takes no more requests") from None
    try:
        return await asyncio.wrap_future(call)
    except asyncio.CancelledError:
        if call.cancelled():
            raise ApiProblem(NOT_HERE, "the network or run ended before the request was carried out") from None
        raise


async def _in_words(_: HttpCall, problem: Exception) -> JSONResponse:
    assert isinstance(problem, ApiProblem)
    return JSONResponse({"detail": str(problem)}, problem.status)


async def _unforeseen(_: HttpCall, error: Exception) -> JSONResponse:
    """Answer an unexpected error: the client shows its text, and the server logs its traceback."""
    code, said = ending_of(error)
    return JSONResponse({"detail": said}, CANNOT if code == errors.CANNOT else FAILED)


async def _not_there(request: HttpCall, _: Exception) -> JSONResponse:
    """Answer an unknown path, such as that of a link whose name is written with a slash."""
    said = f"there is no {request.url.path}; {PREFIX}/openapi.json lists all paths, and names in them have no slash"
    return JSONResponse({"detail": said}, MISSING)


async def _not_so(request: HttpCall, _: Exception) -> JSONResponse:
    """Answer a method that a path does not take with 405 and the methods that it takes; the page's are GET and HEAD."""
    documented = request.app.openapi()["paths"].items()
    found = [methods for path, methods in documented if compile_path(path)[0].match(request.url.path)]
    methods = ", ".join(sorted(method.upper() for methods in found for method in methods)) or "GET, HEAD"
    said = f"{request.url.path} does not take {request.method}; use {methods}"
    return JSONResponse({"detail": said}, METHOD_NOT_ALLOWED, {"Allow": methods})


async def _invalid(_: HttpCall, error: Exception) -> JSONResponse:
    """Answer an invalid body or parameter, in the form of every other refusal."""
    assert isinstance(error, RequestValidationError)
    faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
    return JSONResponse({"detail": "; ".join(faults)}, WRONG)
