"""The command-line options of benchmarks, with one meaning in all of them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import inf
from typing import Any


class Options(argparse.ArgumentParser):
    """A parser with `--quick` and `--json`, whose description is the module's docstring.

    An option that is given on the command line overrides the shorter value of `--quick`.
    """

    def __init__(self, module_doc: str | None) -> None:
        super().__init__(description=module_doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._by_length: dict[str, tuple[Any, Any, Any]] = {}
        self.add_argument("--quick", action="store_true", help="fewer cells or repeats")
        self.add_argument("--json", action="store_true", help="one JSON object on the last line instead of tables")

    def add_repeats(self, whole: int, quick: int) -> None:
        """Add `--repeats`: how often each measurement is made."""
        self._add_shortened("repeats", whole, quick, type=positive, help="how often each measurement is made")

    def add_steps(self, whole: int, quick: int) -> None:
        """Add `--steps`: how many steps a training takes."""
        self._add_shortened("steps", whole, quick, type=positive, help="steps of a training")

    def add_draws(self, whole: Sequence[int], quick: int) -> None:
        """Add `--seeds`, a list of seeds; with `--quick` the first of them."""
        self._add_shortened("seeds", list(whole), list(whole[:quick]), type=numbers, help="seeds, with commas between")

    def add_seeds(self, seeds: int, simulated: int | None = None) -> None:
        """Add `--seeds`, how many there are. `simulated` is the default with the caller's option `--simulated`."""
        self._add_shortened("seeds", seeds, 1, simulated, type=positive, help="how many seeds")

    def add_campaign(self, seeds: int, simulated: int | None = None) -> None:
        """Add the options of a `Campaign` whose cells are compared seed by seed, in one or several sittings."""
        self.add_seeds(seeds, simulated)
        self.add_sittings()
        self.add_argument("--forks", action="store_true", help="processes in hosts, not containers: they start at once")

    def add_sittings(self) -> None:
        """Add `--cells` and `--seconds`: how much of a `Campaign` is measured in one sitting."""
        self.add_argument("--cells", type=positive, help="measure this many of the missing cells at most")
        self.add_argument("--seconds", type=float, default=inf, help="begin no cell later than this")

    def _add_shortened(
        self, name: str, whole: Any, quick: Any, simulated: Any = None, *, help: str, **how: Any
    ) -> None:
        self._by_length[name] = whole, quick, whole if simulated is None else simulated
        shown = [",".join(map(str, one)) if isinstance(one, list) else str(one) for one in (whole, quick)]
        also = "" if simulated is None else f", with --simulated {simulated}"
        self.add_argument(f"--{name}", help=f"{help} (default {shown[0]}; with --quick {shown[1]}{also})", **how)

    def parse(self, words: Sequence[str] | None = None) -> argparse.Namespace:
        """Return the given options, with the values of `--quick` or the defaults for the others."""
        given = self.parse_args(words)
        for name, (whole, quick, simulated) in self._by_length.items():
            if getattr(given, name) is None:
                default = simulated if getattr(given, "simulated", False) else whole
                setattr(given, name, quick if given.quick else default)
        return given


def positive(text: str) -> int:
    """Return the whole number above 0 that a text is.

    Raises:
        ArgumentTypeError: The text is no such number; the program ends with exit code 2.
    """
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0; write 1 or more")
    return int(text)


def numbers(text: str) -> list[int]:
    """Return the numbers of a list such as `1,2,3`."""
    return [int(number) for number in text.split(",")]
