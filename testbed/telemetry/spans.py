"""OpenTelemetry spans: one trace as a file in OTLP's JSON, which its collector reads.

The identifiers are hashes of names, so a trace that is written twice keeps its identifiers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

#: `SPAN_KIND_INTERNAL`: an operation within one service.
INTERNAL = 1

#: Bytes of a trace's and of a span's identifier.
TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8


@dataclass(frozen=True, slots=True)
class Span:
    """An operation from `began_s` to `ended_s` (Unix time)."""

    #: Unique within its trace.
    name: str
    began_s: float
    ended_s: float
    attributes: Mapping[str, str | int | float] = field(default_factory=dict)


def otlp(trace: str, root: Span, spans: Iterable[Span]) -> str:
    """Return the trace of this name in OTLP's JSON: `root`, and the other spans as its children."""
    told = [_span(trace, root, None), *(_span(trace, span, root) for span in spans)]
    resource = {"attributes": list(_attributes({"service.name": "testbed", "service.instance.id": trace}))}
    scoped = {"scope": {"name": "testbed"}, "spans": told}
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scoped]}]})


def _span(trace: str, span: Span, parent: Span | None) -> dict[str, Any]:
    of_parent = {} if parent is None else {"parentSpanId": _identifier(SPAN_ID_BYTES, trace, parent.name)}
    return {
        "traceId": _identifier(TRACE_ID_BYTES, trace),
        "spanId": _identifier(SPAN_ID_BYTES, trace, span.name),
        **of_parent,
        "name": span.name,
        "kind": INTERNAL,
        "startTimeUnixNano": _nanoseconds(span.began_s),
        "endTimeUnixNano": _nanoseconds(span.ended_s),
        "attributes": list(_attributes(span.attributes)),
    }


def _identifier(size: int, *names: str) -> str:
    return sha256("\0".join(names).encode()).hexdigest()[: 2 * size]


def _nanoseconds(unix_s: float) -> str:
    """Return nanoseconds as a string: JSON numbers lose the last digits of 64 bits."""
    return str(round(unix_s * 1e9))


def _attributes(values: Mapping[str, str | int | float]) -> Iterator[dict[str, Any]]:
    for key, value in values.items():
        if isinstance(value, int):
            yield {"key": key, "value": {"intValue": str(value)}}
        else:
            yield {"key": key, "value": {"doubleValue" if isinstance(value, float) else "stringValue": value}}
