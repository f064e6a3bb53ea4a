"""The controller's page: one file, no assets from elsewhere, fed by the WebSocket."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).with_name("dashboard.html").read_text(encoding="utf-8")
