"""Quantities as users write them: `50mbit`, `110ms`, `0.01%`, `1GB`, `1bdp`.

Parsed values are in bit/s, seconds and bytes, and probabilities are in [0, 1]. A number without a unit is refused
where a unit is needed, because readers would disagree about its unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, PlainValidator, WithJsonSchema

from testbed.link import CoDel, GilbertElliott, Queue, Red

V = TypeVar("V")

RATES = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
SIZES = {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}

#: The default sizes of /tmp, /dev/shm and /out in a program's container, in bytes.
TMP_BYTES = SHM_BYTES = 64 << 20
OUT_BYTES = 256 << 20

NUMBER = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-z%]*)\s*")


def _split(text: object, example: str) -> tuple[float, str]:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"is not a quantity | a number with its unit, such as {example}")
    match = NUMBER.fullmatch(str(text))
    if not match or not math.isfinite(float(match[1])):
        raise ValueError(f"{text!r} is not a quantity | a number with its unit, such as {example}")
    return float(match[1]), match[2]


def _quantity(units: Mapping[str, float], example: str, least: float, most: float) -> Callable[[object], float]:
    def parse(text: object) -> float:
        value, unit = _split(text, example)
        if unit not in units:
            said = f"has the unknown unit {unit!r}" if unit else "has no unit"
            raise ValueError(f"{text!r} {said} | one of {', '.join(units)}, such as {example}")
        factor = units[unit]
        value = value * factor if factor >= 1 else value / round(1 / factor)  # 100us is 0.0001 s exactly
        if not least <= value <= most:
            raise ValueError(f"{text!r} is out of range | from {least:g} to {most:g} {_base(units)}, such as {example}")
        return value

    return parse


def _base(units: Mapping[str, float]) -> str:
    return next(unit for unit, factor in units.items() if factor == 1)


def _loss(text: object) -> float:
    value, unit = _split(text, "0.1%")
    if unit != "%":
        raise ValueError(f"{text!r} is not a percentage | a number and %, such as 0.1%")
    if not 0 <= value <= 100:
        raise ValueError(f"{text!r} is out of range | a percentage from 0% to 100%")
    return value / 100


#: The fields of loss in bursts: probabilities of a change of state after a packet, and of a loss in each state.
CHAIN_NEEDS = ("p", "r")
CHAIN_MAY = ("bad", "good")
CHAIN_EXAMPLE = "{p: 1%, r: 30%, bad: 100%, good: 0%}"


def _bursty_loss(value: object) -> float | GilbertElliott:
    if not isinstance(value, Mapping):
        return _loss(value)
    names = (*CHAIN_NEEDS, *CHAIN_MAY)
    if strange := sorted(map(str, value.keys() - set(names))):
        raise ValueError(f"loss in bursts has no field {strange[0]!r} | {', '.join(names)}, such as {CHAIN_EXAMPLE}")
    if missing := [name for name in CHAIN_NEEDS if name not in value]:
        raise ValueError(f"loss in bursts needs `{missing[0]}` | both p and r, such as {CHAIN_EXAMPLE}")
    shares = {str(name): _loss(share) for name, share in value.items()}
    for name in CHAIN_NEEDS:
        if shares[name] == 0:
            raise ValueError(f"with `{name}: {value[name]}` a state never ends | above 0%; or random loss: 0.1%")
    try:
        return GilbertElliott(**shares)
    except ValueError:
        rule = "the bad state loses no more than the good one"
        raise ValueError(f"{rule} | `bad` above `good`, such as {CHAIN_EXAMPLE}") from None


#: The fields of a queue, by its discipline.
QUEUE_FIELDS = {"droptail": (), "codel": ("target", "interval"), "red": ("min", "max", "probability")}
QUEUE_EXAMPLE = "{limit: 1bdp, discipline: codel, target: 5ms, interval: 100ms}"


def _queue(value: object) -> Queue:
    if not isinstance(value, Mapping):
        return _queue_limit(value)
    name = value.get("discipline", "droptail")
    if not isinstance(name, str) or name not in QUEUE_FIELDS:
        raise ValueError(f"{name!r} is no queue discipline | one of {', '.join(QUEUE_FIELDS)}, such as {QUEUE_EXAMPLE}")
    fields = ("limit", "discipline", *QUEUE_FIELDS[name])
    if strange := sorted(map(str, value.keys() - set(fields))):
        raise ValueError(f"a {name} queue has no field {strange[0]!r} | {', '.join(fields)}, such as {QUEUE_EXAMPLE}")
    limit = _of_field("limit", _queue_limit, value.get("limit", "1bdp"))
    return replace(limit, discipline=_discipline(name, value))


def _of_field(field: str, parse: Callable[[object], V], value: object) -> V:
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"{field} {error}") from None


def _discipline(name: str, value: Mapping[Any, Any]) -> CoDel | Red | None:
    if name == "codel":
        codel = CoDel(*(_of_field(its, _codel_time, value.get(its, usual)) for its, usual in CODEL_DEFAULTS.items()))
        if not codel.target_s < codel.interval_s:
            raise ValueError("codel's target is not below its interval | a target of 5 to 10 % of the interval")
        return codel
    if name == "red":
        red = Red(*(_of_field(its, _loss, value.get(its, usual)) for its, usual in RED_DEFAULTS.items()))
        if not 0 < red.least < red.most or red.probability == 0:
            rule = "red's thresholds and probability must be above 0%, and min below max"
            raise ValueError(f"{rule} | such as {{discipline: red, min: 10%, max: 30%, probability: 2%}}")
        return red
    return None


#: The longest queue in packets or bandwidth-delay products; and in bytes, of which the kernel counts 2³² - 1.
MOST_QUEUE, MOST_QUEUE_BYTES = 1e6, 4e9


def _queue_limit(text: object) -> Queue:
    value, unit = _split(text, "1bdp")
    if unit not in ("bdp", "packets", *SIZES):
        raise ValueError(f"{text!r} has no known unit | a length such as 1bdp, 200packets or 256KB")
    amount = value * SIZES.get(unit, 1.0)
    if not 0 < amount <= (MOST_QUEUE_BYTES if unit in SIZES else MOST_QUEUE):
        most = f"{MOST_QUEUE_BYTES / 1e9:.0f}GB" if unit in SIZES else f"{MOST_QUEUE:.0f}{unit}"
        raise ValueError(f"{text!r} is out of range | 1bdp, 200packets or 256KB; above 0, and at most {most}")
    if unit == "bdp":
        return Queue(value, "bdp")
    if amount < 1:
        least = "packet" if unit == "packets" else "byte"
        raise ValueError(f"{text!r} is less than one {least} | a length such as 1bdp, 200packets or 256KB")
    return Queue(amount, "packets" if unit == "packets" else "bytes")


@dataclass(frozen=True, slots=True)
class TrafficRate:
    """A rate of traffic: `bps` in bit/s, plus `share` (in [0, 1]) of the capacity of the traffic's link."""

    bps: float = 0.0
    share: float = 0.0

    def on(self, capacity_bps: float) -> float:
        """Return the rate on a link with this capacity. Both are in bit/s."""
        return self.bps + self.share * capacity_bps


def _traffic_rate(text: object) -> TrafficRate:
    _, unit = _split(text, "20mbit")
    if unit == "%":
        if not (share := _loss(text)) > 0:
            raise ValueError(f"{text!r} is no traffic | a share of the link's rate above 0%, such as 30%")
        return TrafficRate(share=share)
    if unit not in RATES:
        said = f"has the unknown unit {unit!r}" if unit else "has no unit"
        raise ValueError(f"{text!r} {said} | a rate such as 20mbit, or a share of the link's, such as 30%")
    return TrafficRate(_quantity(RATES, "20mbit", LEAST_TRAFFIC_BPS, MOST_LINK_BPS)(text))


CODEL_DEFAULTS = {"target": "5ms", "interval": "100ms"}
RED_DEFAULTS = {"min": "10%", "max": "30%", "probability": "2%"}
#: CoDel's times: at 12 Mbit/s a full frame takes a millisecond.
_codel_time = _quantity(TIMES, "5ms", 1e-4, 60.0)

#: The rates that a link may have. 64 kbit/s is a packet of 1,514 bytes every 0.19 s: slower links carry no training. No
#: host forwards 100 Gbit/s.
LEAST_LINK_BPS, MOST_LINK_BPS = 64e3, 100e9
#: The least rate of background traffic, in bit/s: less would not be noticed on any link.
LEAST_TRAFFIC_BPS = 1e3
#: The longest delay, one way. Light takes a quarter of a second to a geostationary satellite and back.
MOST_DELAY_S = 60.0


def at_least(least_s: float) -> AfterValidator:
    """Return a validator that refuses durations below `least_s` seconds."""

    def check(duration_s: float) -> float:
        if duration_s < least_s:
            raise ValueError(f"{written(duration_s, TIMES)} is too short | at least {written(least_s, TIMES)}")
        return duration_s

    return AfterValidator(check)


#: The schema key for a quantity's units. The model has the quantity, and its default, as a number.
INSIDE = "x-inside"


def _written(units: Mapping[str, float], *examples: str) -> WithJsonSchema:
    pattern = rf"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*({'|'.join(units)})\s*$"
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": list(examples), INSIDE: dict(units)})


def written(value: float, units: Mapping[str, float]) -> str:
    """Return a quantity as users write it, `50mbit`: in the largest unit in which its number is 1 or more."""
    fitting = [unit for unit, size in units.items() if size <= value]
    unit = max(fitting, key=units.__getitem__) if fitting else _base(units)
    return f"{value / units[unit]:g}{unit}"


def count(amount: int, noun: str) -> str:
    """Return an amount in words: `1 swap`, `3 swaps`, `2 processes`."""
    return f"{amount} {noun}{'' if amount == 1 else 'es' if noun.endswith('s') else 's'}"


RATE, TIME, PERCENTAGE = _written(RATES, "50mbit"), _written(TIMES, "20ms"), _written({"%": 0.01}, "0.1%")
CHAIN: dict[str, Any] = {
    "type": "object",
    "properties": dict.fromkeys((*CHAIN_NEEDS, *CHAIN_MAY), PERCENTAGE.json_schema),
    "required": list(CHAIN_NEEDS),
    "additionalProperties": False,
}

Rate = Annotated[float, BeforeValidator(_quantity(RATES, "50mbit", LEAST_LINK_BPS, MOST_LINK_BPS)), RATE]
TrafficLoad = Annotated[TrafficRate, BeforeValidator(_traffic_rate), _written({**RATES, "%": 0.01}, "20mbit", "30%")]
#: The rate of a worker's own interface: the token bucket counts bytes per second in 32 bits.
CardRate = Annotated[float, BeforeValidator(_quantity(RATES, "1gbit", 64e3, 34e9)), RATE]
Delay = Annotated[float, BeforeValidator(_quantity(TIMES, "20ms", 0.0, MOST_DELAY_S)), TIME]
Duration = Annotated[float, BeforeValidator(_quantity(TIMES, "30s", 0.0, 1e7)), TIME]
#: The length of a row of a resampled trace: the times in packet-delivery files are whole milliseconds.
Step = Annotated[float, BeforeValidator(_quantity(TIMES, "100ms", 1e-3, 3600.0)), TIME]
Size = Annotated[float, BeforeValidator(_quantity(SIZES, "512MB", 1.0, 1e13)), _written(SIZES, "512MB")]
#: The memory of a container, of which the engine gives at least 6 MiB.
Memory = Annotated[float, BeforeValidator(_quantity(SIZES, "512MB", 6 << 20, 1e13)), _written(SIZES, "512MB")]
Loss = Annotated[float, BeforeValidator(_loss), PERCENTAGE]
#: Loss at random, or in bursts.
BurstyLoss = Annotated[
    float | GilbertElliott,
    PlainValidator(_bursty_loss),
    WithJsonSchema({"anyOf": [PERCENTAGE.json_schema, CHAIN]}),
]
QUEUES = {**SIZES, "bdp": 1.0, "packets": 1.0}
QUEUE_LIMIT = _written(QUEUES, "1bdp", "200packets").json_schema
QUEUE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "limit": QUEUE_LIMIT,
        "discipline": {"enum": list(QUEUE_FIELDS)},
        **dict.fromkeys(QUEUE_FIELDS["codel"], TIME.json_schema),
        **dict.fromkeys(QUEUE_FIELDS["red"], PERCENTAGE.json_schema),
    },
    "additionalProperties": False,
}
#: The limit of a queue, or a mapping with the limit and the discipline that drops packets before the limit does.
QueueLimit = Annotated[Queue, BeforeValidator(_queue), WithJsonSchema({"anyOf": [QUEUE_LIMIT, QUEUE]})]
