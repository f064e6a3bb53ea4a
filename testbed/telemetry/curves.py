"""Figures that a program gives of itself: in what it prints, and in files that TensorBoard reads.

step=12 loss=0.83 tokens=1,234   words with a number after `=`                    any name that may be a metric's
{"step": 12, "loss": 0.83}       a JSON object                                    the same
{'loss': 2.31, 'epoch': 0.02}    a Python dictionary, as transformers' Trainer    the same
Loss: 2.3   train loss 2.45      words, then `:`, `=` or a space, then a number   names with a metric's word alone
| loss 3.21 | wps 1,234 |        a row of cells                                   any, where one has a metric's word
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

#: A number, also with thousands separators: `1,234.5`, `1_234`.
_NUMBER = r"([-+]?(?:\d{1,3}(?:[,_]\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
#: What may not follow it: `0,25` and `12.3.4` can be read in two ways, and `9812/10000` is a ratio.
_ALONE = r"(?!\w|\.\w|[,'’]\d)(?! ?/ ?\d)"
#: What PyTorch and NumPy print around one.
_WRAPPED = r"(?:(?:tensor|np\.float\d+|np\.int\d+)\()?"

PAIR = re.compile(rf"(?<![\w=./@-])([A-Za-z_][\w./@-]*)={_WRAPPED}{_NUMBER}{_ALONE}")
QUOTED = re.compile(rf"""(['"])([^'"]+)\1\s*:\s*(['"]?){_WRAPPED}{_NUMBER}\)?\3(?=\s*(?:,(?!\d)|\}}))""")
WORDS = re.compile(rf"(?<![\w./@-])([A-Za-z_][\w./@-]*)(\s*[:=]\s*|\s+){_WRAPPED}{_NUMBER}{_ALONE}(\s?%)?")
CELL = re.compile(rf"\s*([A-Za-z_][\w./@()-]*(?: [\w./@()-]+){{0,4}}?)\s*[:= ]\s*{_NUMBER}\s*%?\s*")
CELL_NAME = re.compile(r"\s*([A-Za-z_][\w./@()-]*(?: [\w./@()-]+){0,4})\s*")
CELL_NUMBER = re.compile(rf"\s*{_NUMBER}\s*")
STEP = re.compile(r"(?<![\w./-])(?:global[ _]step|step|iteration|iter|round)[ :=#]*\[?\s*(\d[\d,_]*)(?![\w.])", re.I)
DIGIT = re.compile(r"\d")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


#: What counts the others and is no curve itself.
STEPS = ("step", "global_step", "iteration", "iter", "round")

#: The words of which a metric's name has one. Where a name is set off by less than `=`, it must.
METRICS = _set(
    "acc accuracy auc auroc bleu bpb bpc cer dice elbo entropy f1 fid gnorm iou kl loss lr mae mape mfu miou mse "
    "nll perplexity ppl precision psnr recall reward rmse rouge score ssim throughput wer wps"
)
#: Words that make a name of two: `learning rate`, `grad norm`.
SECOND = {"rate": ("learning",), "norm": ("grad", "gradient")}
#: What stands before such a name and belongs to it: `train loss` and `val loss` are two curves.
QUALIFIERS = _set(
    "average avg batch best cls epoch eval evaluation final learning grad gradient lm mean mlm running test total "
    "train training val valid validation"
)

#: Names of numbers that say who, where or how it ended: PyTorch warns with `err=-3`, and launchers print `rank=0`.
NO_METRICS = _set(
    "code device errno exitcode fd gpu id level line pid port ppid rank rc ret retries returncode seed signal "
    "status tid timeout uid v_num version world_size nnodes nproc attempt"
)
#: An error rate has a fraction, an error's number has none.
ERRORS = frozenset(["err", "error"])
#: A variable of the environment, such as OMP_NUM_THREADS.
VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")

#: What a library's message begins with: glog's and PyTorch's (`[W1126 22:30:01 socket.cpp:767]`), NCCL's, and warnings
#: of Python and compilers. It has no figures of training.
DIAGNOSTIC = re.compile(
    r"\b[IWEF]\d{4} \d\d:\d\d|\[[IWEF] [\w./-]+\.\w+:\d+\]|\bNCCL (?:INFO|WARN)|Warning:|\bwarning:"
)
#: A logger's line of this level may be the script's own, so metrics count in it, and other numbers do not.
LEVEL = re.compile(r"\b(?:WARN|WARNING|ERROR|CRITICAL|FATAL)\b")

#: A line with more has no figures that one could look at.
MOST_FIGURES = 32
LONGEST_LINE = 4096

#: A program's names are asked about again with each of its lines.
KNOWN_NAMES = 4096

#: TensorBoard's files, by their names.
EVENTS = "*tfevents*"
#: A record that is called longer than this is none.
LONGEST_RECORD = 1 << 20

_LENGTH = struct.Struct("<QI")
_CHECKSUM_BYTES = 4
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Figures:
    """What a program gave at one time, by name; `step` where it said which, `at_s` (Unix time) where the file does."""

    values: Mapping[str, float]
    step: int | None = None
    at_s: float | None = None


def figures_in(line: str) -> Figures | None:
    """Return the figures of a printed line; None where it has none."""
    if len(line) > LONGEST_LINE or not DIGIT.search(line) or DIAGNOSTIC.search(line):
        return None
    line = COLOUR.sub("", line)
    found = _of_object(line) if line.lstrip().startswith("{") else {}
    found = found or {**_of_words(line), **_of_dictionary(line), **_of_cells(line)}
    finite = {key: value for key, value in found.items() if math.isfinite(value)}
    step = next((int(value) for name, value in finite.items() if name.lower() in STEPS), None)
    if step is None and (said := STEP.search(line)) is not None:
        step = int(_number(said[1]))
    only_known = LEVEL.search(line) is not None
    values = {
        key: value
        for key, value in finite.items()
        if key.lower() not in STEPS and may_be_metric(key, value) and (is_metric(key) or not only_known)
    }
    return Figures(values, step) if 0 < len(values) <= MOST_FIGURES else None


def may_be_metric(name: str, value: float) -> bool:
    """Return whether a number of this name may be a figure of training: it is not known to be something else."""
    if len(name) < 2 or not re.search("[A-Za-z]", name) or VARIABLE.fullmatch(name):
        return False
    *_, last = parts = re.split(r"[\W_]+", name.lower())
    if name.lower() in NO_METRICS or (last in NO_METRICS and not is_metric(name)):
        return False
    return parts[0] not in ERRORS or len(parts) > 1 or not value.is_integer()


@lru_cache(KNOWN_NAMES)
def is_metric(name: str) -> bool:
    """Return whether a name has a metric's word: `train/loss`, `valAccuracy`, `Acc@1`, `learning rate`."""
    words = re.split(r"[\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())
    return (
        any(word in METRICS or word.rstrip("0123456789") in METRICS for word in words)
        or any(before in SECOND.get(after, ()) for before, after in pairwise(words))
        or words[-1] in ERRORS
    )


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("_", ""))


def _of_words(line: str) -> dict[str, float]:
    """Read words with a number after them: by where the number stands, so that a longer name of the same is taken."""
    found = {match.start(2): (match[1], match[2]) for match in PAIR.finditer(line)}
    for match in WORDS.finditer(line):
        name, number = match[1], match[3]
        before = line[: match.start(1)].rsplit(maxsplit=3)[-3:] if line[: match.start(1)].endswith(" ") else []
        while before and before[-1].lower() in QUALIFIERS:
            name = f"{before.pop()} {name}"
        exact = not match[2].isspace() or bool(re.search(r"[.eE]", number)) or bool(match[4])
        if exact and is_metric(name):
            found[match.start(3)] = name, number
    return {name: _number(number) for _, (name, number) in sorted(found.items())}


def _of_dictionary(line: str) -> dict[str, float]:
    """Read a dictionary anywhere in a line. With one inside another, equal names would be taken for one."""
    return {match[2]: _number(match[4]) for match in QUOTED.finditer(line)} if line.count("{") == 1 else {}


def _of_cells(line: str) -> dict[str, float]:
    """Read a row of cells, each with a name and a number, or a name in one and its number in the next."""
    if "|" not in line:
        return {}
    cells = line.split("|")
    found = {match[1]: match[2] for cell in cells if (match := CELL.fullmatch(cell))}
    for left, right in pairwise(cells):
        if (name := CELL_NAME.fullmatch(left)) and (number := CELL_NUMBER.fullmatch(right)):
            found[name[1]] = number[1]
    if not any(map(is_metric, found)):
        return {}
    return {name: _number(number) for name, number in found.items()}


def _of_object(line: str) -> dict[str, float]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    return {key: float(v) for key, v in value.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def figures_of(file: Path) -> Iterator[Figures]:
    """The figures of a file of TensorBoard's, as far as it is whole. Simple values and tensors of one float count."""
    with file.open("rb") as stream:
        while len(header := stream.read(_LENGTH.size)) == _LENGTH.size:
            length, _ = _LENGTH.unpack(header)
            record = stream.read(length) if length <= LONGEST_RECORD else b""
            if len(record) < length or len(stream.read(_CHECKSUM_BYTES)) < _CHECKSUM_BYTES:
                return
            try:
                if (figures := _of_event(record)) is not None:
                    yield figures
            except (ValueError, struct.error, UnicodeDecodeError):
                return


def _of_event(record: bytes) -> Figures | None:
    """An `Event` of TensorFlow's protocol: 1 the time, 2 the step, 5 a summary of (1) values."""
    at_s, step, values = None, None, dict[str, float]()
    for field, kind, value in _fields(record):
        if (field, kind) == (1, _FIXED_64):
            at_s = struct.unpack("<d", value)[0]
        elif (field, kind) == (2, _VARINT):
            step = int.from_bytes(value, "little")
        elif (field, kind) == (5, _BYTES):
            for inner, inner_kind, one in _fields(value):
                if (inner, inner_kind) == (1, _BYTES) and (found := _of_value(one)) is not None:
                    values |= found
    return Figures(values, step, at_s) if values else None


def _of_value(record: bytes) -> dict[str, float] | None:
    """A value of a summary: 1 its tag; 2 a float, or 8 a tensor, which holds one in 5 (floats) or 4 (bytes)."""
    tag, number = None, None
    for field, kind, value in _fields(record):
        if (field, kind) == (1, _BYTES):
            tag = value.decode()
        elif (field, kind) == (2, _FIXED_32):
            number = struct.unpack("<f", value)[0]
        elif (field, kind) == (8, _BYTES):
            floats = [part for inner, _, part in _fields(value) if inner in (4, 5) and len(part) == 4]
            number = struct.unpack("<f", floats[0])[0] if len(floats) == 1 else None
    return {tag: number} if tag and number is not None and math.isfinite(number) else None


def _fields(record: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(number, kind, value) of each field of a message; a number that is written in parts as eight bytes."""
    at = 0
    while at < len(record):
        key, at = _varint(record, at)
        kind = key & 7
        if kind == _VARINT:
            number, at = _varint(record, at)
            yield key >> 3, kind, (number & (2**64 - 1)).to_bytes(8, "little")
            continue
        if kind == _BYTES:
            size, at = _varint(record, at)
        elif kind in (_FIXED_64, _FIXED_32):
            size = 8 if kind == _FIXED_64 else 4
        else:
            raise ValueError(f"no field is of kind {kind}")
        if at + size > len(record):
            raise ValueError("a field goes beyond its message")
        yield key >> 3, kind, record[at : at + size]
        at += size


def _varint(record: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at >= len(record):
            raise ValueError("a number is cut short")
        byte = record[at]
        at += 1
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at
    raise ValueError("a number has more than ten bytes")
