"""What `sync` says of how members train together: a scheme with its options, and what all schemes take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, cached_property
from types import UnionType
from typing import Annotated, Any, Self, Union, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator, Field, SerializeAsAny, create_model, model_validator

from testbed.plan import CODEC_BYTES, TOPK, codec_bytes
from testbed.schemes import SCHEMES, Scheme
from testbed.schemes.options import C, Checked, Misfit, Options, read
from testbed.spec.load import Strict, misfit
from testbed.spec.units import Duration

#: Each stream costs both ends a thread; on paths that lose packets little is gained beyond eight.
MOST_STREAMS = 16

#: The fields of schemes whose exchanges a policy plans; the last is that of all-reduces alone.
PLANNED_FIELDS = ("policy", "options", "codec", "link_codecs")


class SyncSection(Strict):
    """How members train together: by the scheme that is the file's `strategy`, with the options of its own, over the
    plans of a `policy`, through a `codec`.

    `link_codecs` are those of what members of one site send to another's, by `paris->tokyo`. `streams` connections go
    to each next hop, under the `congestion` control of that name, or the kernel's default.

    There is a model for each scheme, which has its options as fields too; `own` has them as the scheme takes them.
    """

    strategy: str = "gradients"
    codec: str = "fp32"
    link_codecs: dict[str, str] = Field(default_factory=dict)
    streams: int = Field(default=1, ge=1, le=MOST_STREAMS)
    congestion: str = Field(default="", pattern=r"^[a-z0-9_]*$")
    policy: str = "auto"
    options: dict[str, Any] = Field(default_factory=dict)
    round_timeout: Duration = Field(default=120.0, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _fields_of_the_scheme(cls, value: Any) -> Any:
        scheme = _scheme_of(value)
        for name in value if isinstance(value, Mapping) else ():
            owners = [other for other in SCHEMES if other in _owners().get(name, ())]  # the best known first
            if owners and scheme.name not in owners:
                raise misfit(name, f"the strategy {scheme.name} has none", f"`strategy: {owners[0]}`")
        return {"codec": scheme.codec, **value} if isinstance(value, Mapping) and scheme.planned else value

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        codecs = {"codec": self.codec, **{f"link_codecs.{at}": codec for at, codec in self.link_codecs.items()}}
        for at, codec in codecs.items():
            if codec not in CODEC_BYTES and not TOPK.fullmatch(codec):
                raise misfit(at, f"no such codec: {codec!r}", f"{', '.join(CODEC_BYTES)} or topk:0.01")
            self._checks_plan(at, codec)
        return self

    def _checks_plan(self, at: str, codec: str) -> None:
        try:
            self.own.check_plan(self.policy, self.options, codec)
        except Misfit as error:
            raise misfit(at if error.name == "codec" else error.name, error.problem, error.remedy) from None

    @property
    def scheme(self) -> Scheme:
        """How members train together."""
        return SCHEMES[self.strategy]

    @cached_property
    def own(self) -> Options:
        """The scheme's options."""
        return _made(self.scheme.options, self)

    @property
    def bytes_per_value(self) -> float:
        """What a number of the model takes on its way."""
        return codec_bytes(self.codec)


def _scheme_of(value: Any) -> Scheme:
    """The scheme that a file's value of `sync` names."""
    name = value.get("strategy", "gradients") if isinstance(value, Mapping) else "gradients"
    if not isinstance(name, str) or name not in SCHEMES:
        expected = ", ".join(map(repr, SCHEMES))
        raise misfit("strategy", f"no such strategy: {name!r:.60}", f"one of {expected}")
    return SCHEMES[name]


@cache
def _owners() -> Mapping[str, frozenset[str]]:
    """The schemes that have a field, of the fields that not all have."""
    owners: dict[str, set[str]] = {}
    for scheme in SCHEMES.values():
        for name in (*scheme.fields, *_planned_fields(scheme)):
            owners.setdefault(name, set()).add(scheme.name)
    return {name: frozenset(its) for name, its in owners.items()}


def _planned_fields(scheme: Scheme) -> tuple[str, ...]:
    if not scheme.planned:
        return ()
    return PLANNED_FIELDS if scheme.exchange == "all-reduce" else PLANNED_FIELDS[:-1]


def read_sync(value: Any) -> Any:
    """A file's value of `sync` as the model of its scheme; what is a model stays one."""
    if isinstance(value, SyncSection):
        return value
    return model_of(_scheme_of(value)).model_validate(value)


def model_of(scheme: Scheme) -> type[Strict]:
    """The model of the section under this scheme."""
    return _model(scheme.options, SyncSection)  # type: ignore[arg-type]


#: The field of an experiment file.
SyncField = Annotated[SerializeAsAny[SyncSection], BeforeValidator(read_sync)]


@cache
def _model(options: type[Checked], base: type[Strict] = Strict) -> type[Strict]:
    """A model with the fields of a scheme's options, under the rules for files: its limits, nothing unknown."""
    hints = get_type_hints(options)
    given: dict[str, Any] = {}
    for its in fields(options):
        default = ... if its.default is MISSING else its.default
        if is_dataclass(default):
            default = _model(type(default))()  # type: ignore[arg-type]
        given[its.name] = (_modelled(hints[its.name]), Field(default=default, **its.metadata))
    checks: dict[str, Any] = {"_obeys": model_validator(mode="after")(_check_of(options))}
    return create_model(options.__name__, __base__=base, __validators__=checks, __doc__=options.__doc__, **given)


def _modelled(hint: Any) -> Any:
    """A type in which dataclasses are models."""
    if is_dataclass(hint):
        return _model(hint)  # type: ignore[arg-type]
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(map(_modelled, get_args(hint)))]  # noqa: UP007 (made of parts)
    return hint


def _check_of(options: type[Checked]) -> Any:
    def check(self: Strict) -> Strict:
        _made(options, self)
        return self

    return check


def _made(options: type[C], model: Strict) -> C:
    """The options that a model has; what breaks a rule is as files have it."""
    names = {its.name for its in fields(options)}
    try:
        return read(options, model.model_dump(include=names))
    except Misfit as error:
        raise misfit(error.name, error.problem, error.remedy) from None
