"""Stretches of time as OpenTelemetry has them: one trace, as a file in OTLP's JSON, which its collector reads.

The identifiers follow from names, so that what is written again is the same trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

#: `SPAN_KIND_INTERNAL`: nothing was asked of another service.
INTERNAL = 1

#: Bytes of OpenTelemetry's identifiers.
TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8


@dataclass(frozen=True, slots=True)
class Span:
    """What went on from `began_s` to `ended_s` (Unix time). Its name is its own among those of a trace."""

    name: str
    began_s: float
    ended_s: float
    attributes: Mapping[str, str | int | float] = field(default_factory=dict)


def otlp(trace: str, root: Span, spans: Iterable[Span]) -> str:
    """The trace of this name as OTLP's JSON: `root`, and the others as its children."""
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
    """As words: JSON's numbers lose the last digits of 64 bits."""
    return str(round(unix_s * 1e9))


def _attributes(values: Mapping[str, str | int | float]) -> Iterator[dict[str, Any]]:
    for key, value in values.items():
        if isinstance(value, int):
            yield {"key": key, "value": {"intValue": str(value)}}
        else:
            yield {"key": key, "value": {"doubleValue" if isinstance(value, float) else "stringValue": value}}
