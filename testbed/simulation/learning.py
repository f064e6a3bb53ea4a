"""What members learn in rounds that are simulated: nothing, or for real."""

from __future__ import annotations

from collections.abc import Mapping

#: Of each member, the metrics of its report.
Metrics = Mapping[str, Mapping[str, float]]


class Learning:
    """Nothing: rounds are of bytes that mean nothing."""

    def round(self, number: int) -> Metrics:
        """Take the steps before a round, and its mean; rounds come in order."""
        return {}

    def digest(self, member: str) -> str:
        """SHA-256 of what a member holds at the end; empty where it holds nothing."""
        return ""
