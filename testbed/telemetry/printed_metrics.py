"""Reads a program's metrics from the lines that it prints.

line                             form                                             names that are read
step=12 loss=0.83 tokens=1,234   words with a number after `=`                    any name that may be a metric's
{"step": 12, "loss": 0.83}       a JSON object                                    any name that may be a metric's
{'loss': 2.31, 'epoch': 0.02}    a Python dictionary, as transformers' Trainer    any name that may be a metric's
Loss: 2.3   train loss 2.45      words, then `:`, `=` or a space, then a number   only names with a metric's word
| loss 3.21 | wps 1,234 |        a row of cells                                   any, if one has a metric's word

A unit after a number is not part of the value: `loss: 2.3 nats`, `speed=12.5it/s`, `acc=91.2%`. The prefixes `k` and
`M` multiply the value: `speed=1.2k`, `throughput: 3 Mtok/s`. A `K` that stands alone after a space may
be kelvin, so the number is not read: `temp=300 K`. Nor are sizes and rates in bytes or bits with a prefix: the prefix
changes with the value, and may count 1024. A list of equal numbers is read as one number, as DeepSpeed's
`lr=[0.001, 0.001]`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

#: A number in lists, and one that may have thousands separators: `1,234.5`, `1_234`. Digits match in one way only: with
#: two ways each, ten numbers of a list that has no end took two minutes.
_PLAIN_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_NUMBER = rf"([-+]?(?:\d{{1,3}}(?:[,_]\d{{3}})+(?:\.\d+)?|{_PLAIN_NUMBER})(?:[eE][-+]?\d+)?)"
_LISTED = rf"[-+]?{_PLAIN_NUMBER}(?:[eE][-+]?\d+)?"
#: The end of a number: `0,25` and `12.3.4` can be read in two ways, and `9812/10000` is a ratio.
_ALONE = r"(?!\w|\.\w|[,'’]\d)(?! ?/ ?\d)"
#: The call that PyTorch and NumPy print around a number.
_WRAPPED = r"(?:(?:tensor|np\.float\d+|np\.int\d+)\()?"

#: Things that programs count, also in a second; and units that no program scales to the size of the number.
_COUNTED = (
    r"(?:its?|iters?|iterations?|toks?|tokens?|samples?|steps?|imgs?|images?|frames?|batch(?:es)?|examples?|seqs?|"
    r"sequences?|words?)(?:/s(?:ec(?:ond)?)?)?"
)
_PLAIN = rf"(?:{_COUNTED}|nats?|bits?|dB|s|secs?|seconds?)"
#: The end of a unit. `k=3` after a number is the next figure.
_UNIT_END = r"(?![\w/-]|\s*[:=])"
#: A K that stands alone after a number: a prefix, or kelvin.
_LETTER = rf" K(?! ?{_COUNTED}{_UNIT_END}){_UNIT_END}"
#: A prefix for thousands or millions, at the number or of what is counted.
_PREFIX = rf"(?!{_LETTER}) ?([kKM])(?: ?{_COUNTED}|/s(?:ec(?:ond)?)?)?{_UNIT_END}"
#: Units that programs scale to the size of the number: one line has 950 MB, and the next 1.2 GB.
_SCALED = rf" ?(?:[kKMGTP]i?[bB](?:its?|ytes?)?(?:/s|ps)?|[GTB]){_UNIT_END}"
#: A number to its end: with a prefix, with a unit, or alone.
_VALUE = rf"{_NUMBER}(?:{_PREFIX}|{_PLAIN}{_UNIT_END}|{_ALONE}(?!{_SCALED}|{_LETTER}))"
PREFIXES = {None: 1.0, "k": 1e3, "K": 1e3, "M": 1e6}
#: Names with which a prefix may be something else: `300M` of memory is 300 MB or 300 MiB, `temp=300K` is in kelvin.
NO_PREFIX = re.compile(r"mem|alloc|reserved|cache|bytes|size|ram(?![a-z])|(?<![a-z])temp(?:erature)?(?![a-z])", re.I)

PAIR = re.compile(rf"(?<![\w=./@-])([A-Za-z_][\w./@-]*)={_WRAPPED}{_VALUE}")
QUOTED = re.compile(
    rf"""(['"])([^'"]+)\1\s*:\s*(['"]?){_WRAPPED}{_NUMBER}(?:{_PREFIX}| ?{_PLAIN}| ?%)?\)?\3(?=\s*(?:,(?!\d)|\}}))"""
)
WORDS = re.compile(rf"(?<![\w./@-])([A-Za-z_][\w./@-]*)(\s*[:=]\s*|\s+){_WRAPPED}{_VALUE}(\s?%)?")
CELL = re.compile(
    rf"\s*([A-Za-z_][\w./@()-]*(?: [\w./@()-]+){{0,4}}?)\s*[:= ]\s*{_NUMBER}(?:{_PREFIX}| ?{_PLAIN})?\s*%?\s*"
)
CELL_NAME = re.compile(r"\s*([A-Za-z_][\w./@()-]*(?: [\w./@()-]+){0,4})\s*")
CELL_NUMBER = re.compile(rf"\s*{_NUMBER}(?:{_PREFIX}| ?{_PLAIN})?\s*%?\s*")
LIST = re.compile(rf"(?<![\w=./@-])([A-Za-z_][\w./@-]*)(['\"]?\s*[:=]\s*)\[\s*({_LISTED}(?:\s*,\s*{_LISTED})*)\s*\]")
STEP = re.compile(r"(?<![\w./-])(?:global[ _]step|step|iteration|iter|round)[ :=#]*\[?\s*(\d[\d,_]*)(?![\w.])", re.I)
#: No program counts so far. Longer rows of digits can be infinite as a float, which no integer is.
STEP_END = 2.0**63
#: The count in tqdm's progress bar, without a unit's scale such as `1.2k/60k`.
BAR = re.compile(r"\d%\|[^|]*\|\s*(\d+)/\d+ \[")
DIGIT = re.compile(r"\d")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


#: Names of the step that the other figures belong to.
STEPS = ("step", "global_step", "iteration", "iter", "round")

#: Words of metrics' names. A name that is not followed by `=` must contain one.
METRICS = _set(
    "acc accuracy auc auroc bleu bpb bpc cer dice elbo entropy f1 fid gnorm iou kl loss lr mae mape mfu miou mse "
    "nll perplexity ppl precision psnr recall reward rmse rouge score ssim throughput wer wps"
)
#: Second words of two-word names, with their first words: `learning rate`, `grad norm`.
SECOND = {"rate": ("learning",), "norm": ("grad", "gradient")}
#: Words before a name that belong to it: `train loss` and `val loss` are two curves.
QUALIFIERS = _set(
    "average avg batch best cls epoch eval evaluation final learning grad gradient lm mean mlm running test total "
    "train training val valid validation"
)

#: Names of identifiers and exit codes, which are no metrics: launchers print `rank=0`.
NO_METRICS = _set(
    "code device errno exitcode fd gpu id level line pid port ppid rank rc ret retries returncode seed signal "
    "status tid timeout uid v_num version world_size nnodes nproc attempt"
)
#: Names of error rates, which have a fraction, and of error numbers, which have none: PyTorch warns with `err=-3`.
ERRORS = frozenset(["err", "error"])
#: A variable of the environment, such as OMP_NUM_THREADS.
VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")

#: Half a character, which JSON can escape and UTF-8 can't encode.
HALF_CHARACTER = re.compile("[\ud800-\udfff]")

#: The beginning of a library's message, which has no figures of training: glog's and PyTorch's (`[W1126 22:30:01
#: socket.cpp:767]`), NCCL's, and warnings of Python and compilers.
DIAGNOSTIC = re.compile(
    r"\b[IWEF]\d{4} \d\d:\d\d|\[[IWEF] [\w./-]+\.\w+:\d+\]|\bNCCL (?:INFO|WARN)|Warning:|\bwarning:"
)
#: A logger's level. The line may be the script's own, so names with a metric's word are read, and no others.
LEVEL = re.compile(r"\b(?:WARN|WARNING|ERROR|CRITICAL|FATAL)\b")

#: The most figures of a line: a line with more is no report of progress.
MOST_FIGURES = 32
LONGEST_LINE = 4096

#: The size of the cache of names: a program prints the same names in each line.
KNOWN_NAMES = 4096


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures that a program gave at one time, by name."""

    values: Mapping[str, float]
    #: The step, where the line or the file says it.
    step: int | None = None
    #: The time (Unix), where the file says it.
    at_s: float | None = None
    #: The count of the progress bar, if the line is one. A bar is drawn several times with the same values.
    count: int | None = None


def figures_in(line: str) -> Figures | None:
    """Return the figures of a printed line; None for a line without figures."""
    if len(line) > LONGEST_LINE or not DIGIT.search(line) or DIAGNOSTIC.search(line):
        return None
    line = LIST.sub(_one_of_equals, COLOUR.sub("", line))
    found = _of_object(line) if line.lstrip().startswith("{") else {}
    found = found or {**_of_words(line), **_of_dictionary(line), **_of_cells(line)}
    finite = {key: value for key, value in found.items() if math.isfinite(value)}
    step = next((value for name, value in finite.items() if name.lower() in STEPS), None)
    if step is None and (said := STEP.search(line)) is not None:
        step = _number(said[1])
    if step is not None and not abs(step) < STEP_END:
        step = None
    bar = BAR.search(line)
    only_known = LEVEL.search(line) is not None
    values = {
        key: value
        for key, value in finite.items()
        if key.lower() not in STEPS and may_be_metric(key, value) and (is_metric(key) or not only_known)
    }
    whole = None if step is None else int(step)
    return Figures(values, whole, count=int(bar[1]) if bar else None) if 0 < len(values) <= MOST_FIGURES else None


def may_be_metric(name: str, value: float) -> bool:
    """Return whether a number of this name may be a figure of training, since it is not known to be something else."""
    if len(name) < 2 or not re.search("[A-Za-z]", name) or HALF_CHARACTER.search(name) or VARIABLE.fullmatch(name):
        return False
    *_, last = parts = re.split(r"[\W_]+", name.lower())
    if name.lower() in NO_METRICS or (last in NO_METRICS and not is_metric(name)):
        return False
    return parts[0] not in ERRORS or len(parts) > 1 or not value.is_integer()


@lru_cache(KNOWN_NAMES)
def is_metric(name: str) -> bool:
    """Return whether a name contains a metric's word: `train/loss`, `valAccuracy`, `Acc@1`, `learning rate`."""
    words = re.split(r"[\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())
    return (
        any(word in METRICS or word.rstrip("0123456789") in METRICS for word in words)
        or any(before in SECOND.get(after, ()) for before, after in pairwise(words))
        or words[-1] in ERRORS
    )


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("_", ""))


def _one_of_equals(match: re.Match[str]) -> str:
    """Return a metric's list of equal numbers as one number, and any other list as it is."""
    numbers = [each.strip() for each in match[3].split(",")]
    return (
        f"{match[1]}{match[2]}{numbers[0]}" if is_metric(match[1]) and len(set(map(float, numbers))) == 1 else match[0]
    )


#: A name, its number and the prefix of its unit, as a line has them.
_Written = tuple[str, str, str | None]


def _values(found: Iterable[_Written]) -> dict[str, float]:
    """Return the values by name, with prefixes applied: 2k is 2000.

    A value of memory, a size or a temperature is left out if it has a prefix, which may be 1024 or a unit.
    """
    return {
        name: _number(number) * PREFIXES[prefix]
        for name, number, prefix in found
        if prefix is None or not NO_PREFIX.search(name)
    }


def _of_words(line: str) -> dict[str, float]:
    """Read words with a number after them. Of two names for the number at one place, the longer counts."""
    found: dict[int, _Written] = {match.start(2): (match[1], match[2], match[3]) for match in PAIR.finditer(line)}
    for match in WORDS.finditer(line):
        name, number, prefix = match[1], match[3], match[4]
        before = line[: match.start(1)].rsplit(maxsplit=3)[-3:] if line[: match.start(1)].endswith(" ") else []
        while before and before[-1].lower() in QUALIFIERS:
            name = f"{before.pop()} {name}"
        exact = not match[2].isspace() or bool(re.search(r"[.eE]", number)) or bool(prefix or match[5])
        if exact and is_metric(name):
            found[match.start(3)] = name, number, prefix
    return _values(written for _, written in sorted(found.items()))


def _of_dictionary(line: str) -> dict[str, float]:
    """Return the values of a dictionary in a line; none of nested dictionaries, whose names could collide."""
    return _values((match[2], match[4], match[5]) for match in QUOTED.finditer(line)) if line.count("{") == 1 else {}


def _of_cells(line: str) -> dict[str, float]:
    """Read a row of cells: a name and its number in one cell, or in two neighbouring cells."""
    if "|" not in line:
        return {}
    cells = line.split("|")
    found = {match[1]: (match[1], match[2], match[3]) for cell in cells if (match := CELL.fullmatch(cell))}
    for left, right in pairwise(cells):
        if (name := CELL_NAME.fullmatch(left)) and (number := CELL_NUMBER.fullmatch(right)):
            if CELL.fullmatch(left) and number[0].strip() != number[1]:  # `loss 2.3 | 1.2k tok/s`
                continue
            found[name[1]] = name[1], number[1], number[2]
    return _values(found.values()) if any(map(is_metric, found)) else {}


def _of_object(line: str) -> dict[str, float]:
    try:
        value = json.loads(
            line, parse_int=float
        )  # `float` of an integer with 400 digits is an error, of its text infinity
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    return {key: v for key, v in value.items() if isinstance(v, float)}
