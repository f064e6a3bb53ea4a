"""The output of ping, in any language: of Linux (iputils), of BSD and macOS, and of BusyBox.

    [1700000000.102] 64 bytes from 10.0.0.2: icmp_seq=1 ttl=54 time=42.1 ms
    Request timeout for icmp_seq 2
    64 octets de 10.0.0.2 : icmp_seq=3 ttl=54 temps=42,1 ms

Packets whose numbers are missing between others were lost, as were those for which ping says that no answer came.
Packets have the times of `ping -D`; without it they are a second apart, or as far as the last lines tell
(`time 9013ms`).
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from testbed.trace.forms import Form, ImportedTrace
from testbed.trace.forms.round_trips import STEP_HELP, import_round_trips
from testbed.trace.quantity import TIMES_MS, QuantityError, in_units
from testbed.trace.trace import TraceError

#: The begin of the first line, in any language: `PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data.`
BEGIN = "PING "
#: A reply: its packet's number, other values, and the round trip with its unit; the words are of the user's language.
REPLY = re.compile(
    r"\b(?:icmp_)?seq=(\d{1,5})\b(?: (?:ttl|hlim)=\d+| \w+=\d+(?= ))* [^\W\d]+ ?[=<] ?(\d[\d.,]{0,19}) ?([^\W\d]+)(.*)"
)
#: A reply without its round trip: ping has no room for the time in packets of less than 16 bytes.
UNTIMED = re.compile(r"\b(?:icmp_)?seq=\d{1,5} (?:ttl|hlim)=\d+\s*$")
#: A part of every reply, whatever else is wrong with it.
ANSWER = re.compile(r"\b(?:ttl|hlim)=\d")
#: A packet that had no reply: any other line with a number says why nothing came back.
LOST = re.compile(r"\bicmp_seq[= ](\d{1,5})\b")
#: A reply of Windows' ping, which prints neither numbers nor times.
WINDOWS = re.compile(r"\bTTL=\d+$")
STAMP = re.compile(r"\[(\d{1,12}\.\d{1,9})\] ")
#: `4 packets transmitted, 2 received, 50% packet loss, time 600ms`: in any language the first number counts the packets
#: sent, and the last number is the time that it took, in ms.
SUMMARY = re.compile(
    r"[^\d%]*(\d{1,9})[^\d%,，]*[,，][^\d%]*\d{1,9}(?![\d.]).*?(?:[^\d.,](\d{1,12}) ?(?:ms|мс|毫秒|ミリ秒))?$"
)

#: The time between two packets where the output does not tell it.
INTERVAL_S = 1.0
#: Numbers have 16 bits on the wire, and begin again after the last.
NUMBERS = 2**16
MOST_MS = 120_000.0
#: How long before an earlier packet a packet may seem to have been sent: round trips are printed to the millisecond.
MOST_BACK_S = 1.0
#: The part of a line that is looked at.
MOST_LETTERS = 400
#: Four months of seconds.
MOST_SAMPLES = 10_000_000


def parse_ping(lines: Sequence[str]) -> list[tuple[float, float | None]]:
    """Return (seconds, round trip in seconds or None) for each packet sent. Raises TraceError with the line."""
    output = _PingOutput()
    for number, line in enumerate(lines, 1):
        output.read(number, line.strip()[:MOST_LETTERS])
    if not output.trips:
        wanted = "with lines such as `icmp_seq=1 ttl=54 time=42.1 ms`"
        if any(WINDOWS.search(line.strip()) for line in lines):
            text = f"Windows' ping does not number packets; take the output of Linux's or macOS's ping, {wanted}"
            raise TraceError(text, rule="windows")
        raise TraceError(f"the file has no reply; take the output of ping, {wanted}", rule="no-reply")
    numbers = output.numbers()
    times = output.times(numbers)
    return [(time_s, output.trips.get(number)) for number, time_s in zip(numbers, times, strict=True)]


def says_times(lines: Sequence[str]) -> bool:
    """Return whether the output tells when packets were sent: by stamps before lines, or by the time that all took."""
    found = (STAMP.match(line.strip()) or SUMMARY.match(line.strip()) for line in lines)
    return any(match is not None and match[match.re.groups] for match in found)


class _PingOutput:
    def __init__(self) -> None:
        self.trips: dict[int, float] = {}
        self._stamps: dict[int, float] = {}
        self._lost: set[int] = set()
        self._has_begun = False
        self._sent: int | None = None
        self._interval_s = INTERVAL_S
        self._last = 0

    def read(self, number: int, line: str) -> None:
        if line.startswith(BEGIN):
            if self._has_begun or self.trips or self._lost:
                text = "a second run of ping begins here; take the output of one run"
                raise TraceError(text, rule="two-runs").at_line(number)
            self._has_begun = True
        elif reply := REPLY.search(line):
            sequence = self._unwrapped(int(reply[1]))
            if "DUP" not in reply[4]:
                self.trips[sequence] = _round_trip(number, reply[2], reply[3])
                if stamp := STAMP.match(line):  # the time at which the reply came
                    self._stamps[sequence] = float(stamp[1]) - self.trips[sequence]
        elif UNTIMED.search(line):
            text = "the reply has no round trip; let ping send 16 bytes or more (`ping -s 56`)"
            raise TraceError(text, rule="no-time").at_line(number)
        elif ANSWER.search(line):
            text = f"the reply {line[:60]!r} can't be read; correct the line or leave it out"
            raise TraceError(text, rule="reply").at_line(number)
        elif lost := LOST.search(line):
            self._lost.add(self._unwrapped(int(lost[1])))
        elif ("%" in line or "transmitted" in line) and (summary := SUMMARY.match(line)):
            self._sent = int(summary[1])
            if summary[2] and self._sent > 1 and int(summary[2]):
                self._interval_s = int(summary[2]) / 1e3 / (self._sent - 1)

    def _unwrapped(self, sequence: int) -> int:
        """Return the packet's number, counted on where ping's 16-bit `sequence` begins again at 0."""
        laps = round((self._last - sequence) / NUMBERS)
        self._last = max(laps, 0) * NUMBERS + sequence
        return self._last

    def numbers(self) -> range:
        """Return the numbers of all packets sent: from the first that a line names, or from 1 by the summary, on."""
        seen = self.trips.keys() | self._lost
        first, last = min(seen), max(seen)
        if self._sent is not None:
            first = min(first, 1)
            last = max(last, first + self._sent - 1)
        if last - first >= MOST_SAMPLES:
            text = f"the output has {last - first + 1} packets; take {MOST_SAMPLES} at most"
            raise TraceError(text, rule="too-many", given=last - first + 1)
        return range(first, last + 1)

    def times(self, numbers: range) -> list[float]:
        """Return when each packet was sent, from 0 on. Packets without a reply lie evenly between the others."""
        if self._stamps.keys() != self.trips.keys() or len(self._stamps) < 2:
            return [(number - numbers[0]) * self._interval_s for number in numbers]
        known = sorted(self._stamps)
        sent = [self._stamps[known[0]]]
        for before, number in pairwise(known):
            if self._stamps[number] < self._stamps[before] - MOST_BACK_S:
                text = f"icmp_seq {number} was sent before icmp_seq {before}; take the output of one run of ping -D"
                raise TraceError(text, rule="order", given=number)
            sent.append(max(sent[-1], self._stamps[number]))
        interval = (sent[-1] - sent[0]) / (known[-1] - known[0])
        times = []
        for number in numbers:
            after = min(max(bisect_left(known, number), 1), len(known) - 1)
            low, high = known[after - 1], known[after]
            pace = (sent[after] - sent[after - 1]) / (high - low) if low <= number <= high else interval
            base, since = (sent[after - 1], low) if number < high else (sent[after], high)
            times.append(base + (number - since) * pace)
        return [time_s - times[0] for time_s in times]


def _round_trip(line: int, given: str, unit: str) -> float:
    try:
        milliseconds, _ = in_units(f"{given.replace(',', '.')} {unit}", TIMES_MS)
    except QuantityError:
        milliseconds = math.nan
    if not 0 <= milliseconds <= MOST_MS:
        text = f"the round trip is '{given} {unit}'; write 0 to {MOST_MS:g} ms"
        raise TraceError(text, rule="range", field="time", given=given).at_line(line)
    return milliseconds / 1e3


def _imported(text: str, step_s: float | None) -> list[ImportedTrace]:
    lines = text.splitlines()
    assumed = () if says_times(lines) else ("packets count as a second apart: the output says no times",)
    return import_round_trips(parse_ping(lines), step_s, *assumed)


FORM = Form("ping", "Output of ping, best with -D: delay and loss.", _imported, step=STEP_HELP)
