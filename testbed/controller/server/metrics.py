"""The controller's metrics, where Prometheus asks for them: at `/metrics` of its admin side."""

from __future__ import annotations

from fastapi import FastAPI, Response

from testbed.controller.service import ControllerService


def with_metrics(app: FastAPI, controller: ControllerService) -> FastAPI:
    """The application, which then answers for metrics too."""

    @app.get("/metrics")
    async def metrics() -> Response:
        from testbed.telemetry.prometheus import CONTENT_TYPE
        from testbed.telemetry.prometheus import metrics as metrics_of

        return Response(metrics_of(controller.status()), media_type=CONTENT_TYPE)

    return app
