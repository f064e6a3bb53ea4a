"""Why something that was asked was not done."""

from __future__ import annotations

#: What was asked names what is not there; cannot be done here; is of what has changed since; is wrong in itself.
MISSING, NOT_HERE, STALE, WRONG = 404, 409, 412, 422
#: What was sent is no JSON.
UNREADABLE = 400
#: It could not be done, though nothing was wrong with it.
FAILED = 500
#: This machine, or its Docker engine, can't do it.
CANNOT = 503


class ApiProblem(Exception):
    """What was asked was not done; the text says why, and what to write instead. `status` is HTTP's code for it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
