"""Members, by their names."""

from __future__ import annotations

import re

#: Workers are named after their site: `paris-w0`.
WORKER_NAME = re.compile(r"(?P<site>.+)-w\d+")


def site_of(member: str) -> str:
    """The site that a worker is in, by its name."""
    match = WORKER_NAME.fullmatch(member)
    return match["site"] if match else member
