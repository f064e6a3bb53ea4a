"""The section `sync`: how members train together, by a scheme with its options and the fields that all schemes take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache, cached_property
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Self, Union, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator, Field, SerializeAsAny, create_model, model_validator

from testbed.plan import CODEC_BYTES, TOPK, codec_bytes
from testbed.schemes import SCHEMES, Scheme, is_file, named
from testbed.schemes.options import C, Checked, Misfit, Options, read
from testbed.spec.load import is_part
from testbed.spec.model import Strict, misfit
from testbed.spec.units import Duration, at_least

#: The most streams. Each costs both ends a thread; on paths that lose packets, more than eight streams gain little.
MOST_STREAMS = 16

#: The fields of schemes whose exchanges a policy plans; only schemes that all-reduce have the last field.
PLANNED_FIELDS = ("policy", "options", "codec", "link_codecs")

#: The field that names further policies for `auto`.
ALSO_FIELD = "sync.options.also"
#: The fields of an experiment that name a scheme or policies, each by its name or its file.
PLUGIN_FIELDS = ("sync.strategy", "sync.policy", ALSO_FIELD)


class SyncSection(Strict):
    """How members train together.

    Note:
        `model_of` derives a model for each scheme from this class, with the scheme's options as further fields.
    """

    strategy: str = "gradients"
    """The scheme by which members train together: its name, or its file (`./mine.py`)."""
    codec: str = "fp32"
    """The codec of sent tensors: fp32, fp16, bf16, int8, bins4, bins2, sparse, or topk with a share: topk:0.01."""
    link_codecs: dict[str, str] = Field(default_factory=dict)
    """Codecs between sites that differ from `codec`: `paris->tokyo` → the codec from members in paris to tokyo's."""
    streams: int = Field(default=1, ge=1, le=MOST_STREAMS)
    """The number of TCP connections from a member to each next hop."""
    congestion: str = Field(default="", pattern=r"^[a-z0-9_]*$")
    """The TCP congestion control of the connections, such as reno; empty for the kernel's default."""
    policy: str = "auto"
    """The policy that makes plans: its name, or its file (`./mine.py`)."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The policy's options."""
    round_timeout: Annotated[Duration, at_least(1.0)] = 120.0
    """The time, such as `120s`, for which a member waits for its peers in a round."""

    @model_validator(mode="before")
    @classmethod
    def _fields_of_the_scheme(cls, value: Any) -> Any:
        scheme = _scheme_of(value)
        own = _own_fields(scheme)
        for name in (name for name in value if name not in own) if isinstance(value, Mapping) else ():
            # The best known scheme comes first.
            if owner := next((other for other, its in SCHEMES.items() if name in _own_fields(its)), None):
                raise misfit(name, f"the strategy {scheme.name} has no such field", f"`strategy: {owner}`")
        return {"codec": scheme.codec, **value} if isinstance(value, Mapping) and scheme.planned else value

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        codecs = {"codec": self.codec, **{f"link_codecs.{at}": codec for at, codec in self.link_codecs.items()}}
        for at, codec in codecs.items():
            if codec not in CODEC_BYTES and not TOPK.fullmatch(codec):
                raise misfit(at, f"there is no codec {codec!r}", f"{', '.join(CODEC_BYTES)} or topk:0.01")
            self._checks_plan(at, codec)
        return self

    def _checks_plan(self, at: str, codec: str) -> None:
        try:
            self.own.check_plan(self.policy, self.options, codec)
        except Misfit as error:
            raise misfit(at if error.name == "codec" else error.name, error.problem, error.remedy) from None

    @property
    def scheme(self) -> Scheme:
        """The registered Scheme that `strategy` names."""
        return named(self.strategy)

    @cached_property
    def own(self) -> Options:
        """The options that belong to the scheme, as an object of the scheme's own options class."""
        return _made(self.scheme.options, self)

    @property
    def bytes_per_value(self) -> float:
        """The bytes for each element of the model under `codec`."""
        return codec_bytes(self.codec)


def _scheme_of(value: Any) -> Scheme:
    name = value.get("strategy", "gradients") if isinstance(value, Mapping) else "gradients"
    if isinstance(name, str) and is_file(name):
        try:
            return named(name)
        except ValueError as error:
            raise misfit("strategy", str(error), "a scheme's file as docs/schemes.md describes it, ./mine.py") from None
    if not isinstance(name, str) or name not in SCHEMES:
        expected = ", ".join(map(repr, SCHEMES))
        raise misfit("strategy", f"there is no strategy {name!r:.60}", f"one of {expected}, or a file, ./mine.py")
    return SCHEMES[name]


def _own_fields(scheme: Scheme) -> tuple[str, ...]:
    """Return the fields of the section that the scheme has, and not every other scheme."""
    planned = PLANNED_FIELDS if scheme.exchange == "all-reduce" else PLANNED_FIELDS[:-1]
    return (*scheme.fields, *(planned if scheme.planned else ()))


def read_sync(value: Any) -> Any:
    """Return the section `sync` of a file, validated by its scheme's model."""
    if isinstance(value, SyncSection):
        return value
    return model_of(_scheme_of(value)).model_validate(value)


def model_of(scheme: Scheme) -> type[Strict]:
    """Return the model of the section under a scheme."""
    return _model(scheme.options, SyncSection)  # type: ignore[arg-type]


#: The type of the field `sync` in an experiment file.
SyncField = Annotated[SerializeAsAny[SyncSection], BeforeValidator(read_sync)]


def with_plugin_files(field: str, value: Any, path_of: Callable[[str, str], Path]) -> Any:
    """Return a field's value with absolute paths of the files of a scheme and of policies.

    Args:
        field: The dotted path of an experiment's field: `sync`, a part of it, or any other.
        value: The value as it is written.
        path_of: Returns the path of a file; given the field that names it, and its name as written.
    """
    if isinstance(value, Mapping) and any(is_part(plugin, field) for plugin in PLUGIN_FIELDS):
        return {name: with_plugin_files(f"{field}.{name}", part, path_of) for name, part in value.items()}

    def whole(name: Any) -> Any:
        by_file = field in PLUGIN_FIELDS and isinstance(name, str) and is_file(name)
        return str(path_of(field, name).absolute()) if by_file else name

    if field == ALSO_FIELD and isinstance(value, str | list):
        return [whole(name) for name in ([value] if isinstance(value, str) else value)]
    return whole(value)


@cache
def _model(options: type[Checked], base: type[Strict] = Strict) -> type[Strict]:
    """Return a model of a scheme's options: `base` with their fields and limits, and no other fields."""
    hints = get_type_hints(options)
    given: dict[str, Any] = {}
    for its in fields(options):
        default = ... if its.default is MISSING else its.default
        if is_dataclass(default):
            default = _model(type(default))(**asdict(default))  # type: ignore[arg-type]
        given[its.name] = (_modelled(hints[its.name]), Field(default=default, **its.metadata))
    checks: dict[str, Any] = {"_obeys": model_validator(mode="after")(_check_of(options))}
    return create_model(options.__name__, __base__=base, __validators__=checks, __doc__=options.__doc__, **given)


def _modelled(hint: Any) -> Any:
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
    """Return the options that a model holds. A broken rule of the options is raised as a file's error."""
    names = {its.name for its in fields(options)}
    try:
        return read(options, model.model_dump(include=names))
    except Misfit as error:
        raise misfit(error.name, error.problem, error.remedy) from None
