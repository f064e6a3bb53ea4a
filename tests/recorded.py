"""Data that others recorded, which lies beside the checkout (`shared/data`), or beside a folder that holds it."""

from __future__ import annotations

from pathlib import Path

import pytest

_FOUND = [folder / "shared/data" for folder in Path(__file__).resolve().parents if (folder / "shared/data").is_dir()]

RECORDED = _FOUND[0] if _FOUND else Path()

needs_recorded = pytest.mark.skipif(not _FOUND, reason="there is no shared/data beside the checkout")
