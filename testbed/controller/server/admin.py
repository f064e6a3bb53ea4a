"""The controller's admin side: REST, a WebSocket and a page, for the run that owns it and for people."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any

from fastapi import Body, FastAPI, HTTPException, WebSocket, WebSocketDisconnect
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ConfigDict

from testbed.controller.enrolment import NotEnrolled, enrol
from testbed.controller.server.dashboard import PAGE
from testbed.controller.service import ControllerService
from testbed.controller.spec import Newcomer
from testbed.planning import PolicyError, ViewError, make_policy
from testbed.planning.graphs import GraphError
from testbed.planning.view import links_from_json, members_from_json, routes_from_json
from testbed.telemetry.store import finite


class NetworkBody(BaseModel):
    """The whole underlay as it is now: `links` {name: {rate_bps, delay_s, up}}, `routes` [[from, to, [link]]]."""

    model_config = ConfigDict(extra="forbid")

    links: dict[str, dict[str, Any]]
    routes: list[Any]


class PlanBody(BaseModel):
    """The policy to go by from now on."""

    model_config = ConfigDict(extra="forbid")

    policy: str
    options: dict[str, Any] = {}


class MemberBody(NetworkBody):
    """A member more, and the network with it; `members` are all of them, as a view has them."""

    newcomer: Newcomer
    members: list[dict[str, Any]]


def make_app(controller: ControllerService) -> FastAPI:
    """The application around a controller; it runs on the controller's event loop."""
    app = FastAPI(title="testbed controller", docs_url=None, redoc_url=None)
    _add_state(app, controller)
    _add_orders(app, controller)
    _add_page(app, controller)
    return app


def _add_state(app: FastAPI, controller: ControllerService) -> None:
    """What the run is at."""

    @app.get("/status")
    async def status() -> Any:
        return finite(controller.status())

    @app.get("/plan")
    async def plan() -> Any:
        return controller.status()["plan"]

    @app.get("/rounds")
    async def rounds(since: int = 0) -> Any:
        return finite(controller.coordinator.progress.rounds(since))


def _add_orders(app: FastAPI, controller: ControllerService) -> None:
    """What it is asked for."""

    @app.post("/network")
    async def network(body: NetworkBody) -> Any:
        try:
            controller.change_network(links_from_json(body.links), routes_from_json(body.routes))
        except ViewError as error:
            raise HTTPException(400, str(error)) from error
        return {}

    @app.post("/members")
    async def member(body: MemberBody) -> Any:
        try:
            members = members_from_json(body.members)
            await enrol(controller, body.newcomer, members, links_from_json(body.links), routes_from_json(body.routes))
        except (NotEnrolled, ViewError) as error:
            raise HTTPException(400, str(error)) from error
        return {}

    @app.post("/plan")
    async def force(body: PlanBody) -> Any:
        try:
            controller.force(make_policy(body.policy, body.options))
        except PolicyError as error:
            raise HTTPException(400, str(error)) from error
        return {}

    @app.post("/graph")
    async def graph(kind: Annotated[str, Body(embed=True)]) -> Any:
        try:
            controller.change_graph(kind)
        except GraphError as error:
            raise HTTPException(400, str(error)) from error
        return {}

    @app.post("/stop")
    async def stop(reason: Annotated[str, Body(embed=True)] = "stopped on request") -> Any:
        controller.fail(reason)
        return {}


def _add_page(app: FastAPI, controller: ControllerService) -> None:
    """The page for people, and what keeps it up to date."""

    @app.websocket("/live")
    async def live(socket: WebSocket) -> None:
        await socket.accept()
        gone = asyncio.create_task(socket.receive())  # a watcher says nothing but its farewell
        seen = 0
        while not controller.closed:
            changed = asyncio.create_task(controller.changes.wait(seen))
            await asyncio.wait({gone, changed}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                changed.cancel()
                return
            seen = changed.result()
            with contextlib.suppress(WebSocketDisconnect):  # `gone` will tell
                await socket.send_json(finite(controller.status()))
        gone.cancel()

    @app.get("/", response_class=HTMLResponse)
    async def page() -> str:
        return PAGE
