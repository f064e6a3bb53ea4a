"""Pages of runs: complete, self-contained, and with the sentences and figures of the run."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from testbed.report.figures.canvas import Drawing
from testbed.report.opening import badge, key_figures, opening
from testbed.report.page import write_comparison, write_report
from testbed.report.record import RunRecord
from testbed.report.text import UNKNOWN
from testbed.run.conclusion.conclude import failed
from testbed.telemetry.round_span import MEANING
from tests.report.runs import MEMBERS, PAIRS, ZERO_S, build_run, without_plans

pytestmark = pytest.mark.pure

VOID = {"meta", "link", "br", "img", "input"}


class _Page(HTMLParser):
    """The text, the identifiers and the references of a page; all its elements must be closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.titles: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        assert self._open == [], "elements left open"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self._open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src") or (name == "xlink:href"):
                self.references.append(value or "")
            self.references += re.findall(r"url\(([^)]*)\)", value or "") if name in ("style", "clip-path") else []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["title"]:
            self.titles.append(data)
        self.text += data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def html(run: Path) -> str:
    return write_report(run).read_text(encoding="utf-8")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the figures' drawings out of pages: they take most of the time, and many tests read the words beside."""
    monkeypatch.setattr(
        Drawing, "svg", property(lambda figure: f'<svg class="figure"><title>{figure.title}</title></svg>')
    )


# For tests of what a page says.
words_alone = pytest.mark.usefixtures("undrawn")


def test_the_page_stands_alone(html: str) -> None:
    page = _Page(html)
    assert page.references, "figures refer to their own clip paths"
    assert all(reference.startswith("#") for reference in page.references)
    assert {reference.removeprefix("#") for reference in page.references} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids)), "two figures share an identifier"
    assert "<script" not in html
    assert "@import" not in html


def test_the_same_run_makes_the_same_page(run: Path, html: str) -> None:
    assert write_report(run).read_text(encoding="utf-8") == html


@words_alone
def test_a_link_in_the_place_of_the_page_is_not_followed(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=20)
    (tmp_path / "theirs").write_text("kept")
    (run / "report.html").symlink_to(tmp_path / "theirs")
    assert not write_report(run).is_symlink()
    assert (tmp_path / "theirs").read_text() == "kept"


def test_the_page_is_small(html: str) -> None:
    assert len(html.encode()) < 3_000_000


def test_every_figure_has_a_title_and_words(html: str) -> None:
    figures = re.findall(r"<svg[^>]*>.*?</svg>", html, flags=re.DOTALL)
    assert len(figures) == 7
    for figure in figures:
        assert 'role="img"' in figure
        assert re.search(r"<title>[^<]+</title><desc>[^<]{20,}</desc>", figure)


def test_a_run_without_plans_shows_its_network_alone(tmp_path: Path) -> None:
    html = write_report(without_plans(build_run(tmp_path / "run", rounds=20))).read_text(encoding="utf-8")
    assert "<h2>The network</h2>" in html and "as it was when training began" in html
    assert "plan 0" not in _Page(html).text and "ringed root" not in html


def test_figures_take_the_pages_colours(html: str) -> None:
    figures = "".join(re.findall(r"<svg[^>]*>.*?</svg>", html, flags=re.DOTALL))
    fixed = re.findall(r"(?<!, )#[0-9a-f]{6}\b", figures)
    assert fixed == [], "a colour that would not follow a dark page"
    assert "DejaVu" not in figures


def test_the_page_tells_the_run(html: str) -> None:
    text = _Page(html).text
    for words in ("trusted", "97.2 %", "plan 3", "network swap", "toronto-tokyo", "6.1.0", "bbr", "userspace"):
        assert words in text
    for member in MEMBERS:
        assert member in text
    for a, b in PAIRS:
        assert f"{a}->{b}" in text
        assert f"{b}->{a}" in text
    assert "→" not in html


QUESTIONS = ("What happened?", "Can it be trusted?", "What was it compared with?")


def answers(html: str) -> dict[str, str]:
    """Return the answers of the first screen, by question."""
    parts = re.findall(r"<h2>([^<]*\?)</h2>(.*?)</div>", html, flags=re.DOTALL)
    return {question: _Page(f"<div>{answer}</div>").text for question, answer in parts}


def test_the_first_screen_says_what_happened_what_can_be_trusted_and_what_was_compared(html: str) -> None:
    assert html.index("What was it compared with?") < html.index("<svg")
    happened, trusted, compared = (answers(html)[question] for question in QUESTIONS)
    assert "8 workers at 5 sites" in happened and "97.2 % test accuracy" in happened
    assert re.search(r"30 s: london-washington dropped from [\d.]+ to [\d.]+ Mbit/s, by its trace", happened)
    assert "70 s: toronto-tokyo went down" in happened and "100 s: the network was swapped" in happened
    assert "plan 3 times" in happened and "no update lost" in happened
    assert trusted.startswith("Yes")
    assert re.search(r"within [\d.]+ % of .*\(tolerance 2 %\)", trusted)
    assert "1.2 times the 0.38 s" in compared and MEANING in compared and "testbed compare" in compared


@words_alone
def test_links_whose_rate_was_not_measured_are_not_said_to_have_it(tmp_path: Path) -> None:
    """As links above 1 Gbit/s, which the flood before a run can't fill."""
    run = build_run(tmp_path / "run", rounds=12)
    summary = json.loads((run / "summary.json").read_text())
    summary["links"]["london->madrid"]["rate_error_pct"] = None
    (run / "summary.json").write_text(json.dumps(summary))
    trusted = answers(write_report(run).read_text(encoding="utf-8"))[QUESTIONS[1]]
    assert f"{2 * len(PAIRS) - 1} of {2 * len(PAIRS)} links" in trusted


@words_alone
def test_a_run_without_bounds_says_that_it_was_compared_with_none(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=12)
    summary = json.loads((run / "summary.json").read_text())
    summary["sync"] |= dict.fromkeys(
        ("bound_seconds", "ratio_to_bound", "lower_bound_seconds", "ratio_to_lower_bound"), None
    )
    (run / "summary.json").write_text(json.dumps(summary))
    assert "no bound" in answers(write_report(run).read_text(encoding="utf-8"))[QUESTIONS[2]]


@words_alone
def test_what_was_changed_by_hand_is_told_with_its_values(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=12)
    values = {"rate_bps": 5e6, "delay_s": 0.02, "jitter_s": None, "loss": None}
    summary = json.loads((run / "summary.json").read_text())
    summary["events"] = [{"at_s": 4.0, "kind": "change", "target": "london->madrid", "by": "hand", "changed": values}]
    (run / "summary.json").write_text(json.dumps(summary))
    html = write_report(run).read_text(encoding="utf-8")
    assert "london->madrid was changed by hand" in answers(html)[QUESTIONS[0]]
    assert "hand: 5 Mbit/s, delay 20 ms" in _Page(html).text


def test_the_run_s_own_text_stays_text(html: str) -> None:
    assert "&lt;b&gt;not bold&lt;/b&gt;" in html
    assert "<b>not bold" not in html


def follow(run: Path, knowledge: str = "measured") -> None:
    """Add estimates of a link to a run, and predictions to its decisions."""
    link = {"rate_bps": 39e6, "low_bps": 38e6, "high_bps": 42e6, "age_s": 0.5, "over_s": 2.0}
    looks = [{"at_s": ZERO_S + at, "links": {"london->madrid": link}} for at in range(3, 60)]
    (run / "estimates.jsonl").write_text("".join(json.dumps(look) + "\n" for look in looks))
    decisions, last = [], None
    for line in (run / "decisions.jsonl").read_text().splitlines():
        decision = {**json.loads(line), "last": last, "reason": "period", "policy": "mst"}
        decisions.append(decision)
        last = decision["epoch"] or last or 0
    (run / "decisions.jsonl").write_text("".join(json.dumps(decision) + "\n" for decision in decisions))
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["spec"]["controller"] = {"knowledge": knowledge}
    (run / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("ends", [True, False])
def test_what_the_controller_knew_and_foresaw_is_told(tmp_path: Path, ends: bool) -> None:
    run = build_run(tmp_path / "run", rounds=60)
    follow(run)
    if not ends:
        (run / "summary.json").unlink()
    html = write_report(run).read_text(encoding="utf-8")
    text = _Page(html).text
    assert re.search(r"9 of 10 estimates of a link's rate were within \d+ %", text)
    assert re.search(r"\d+ % of the predictions were within 20 %", text)
    assert re.search(r"\d swaps? that no event forced promised to save \d+ % of a whole round", text)
    assert 'class="figure"><title>Whole rounds' in html
    assert "estimated, with its interval" in text
    swapped = next(row for row in re.findall(r"<tr>.*?</tr>", html, flags=re.DOTALL) if ">plan 1<" in row)
    assert '<td class="number ">44 %</td>' in swapped, "what it promised"
    assert len(re.findall(r"-?\d+ %<", swapped)) == 2, "and what it brought"


@words_alone
def test_a_controller_that_is_told_the_truth_is_not_held_against_it(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=40)
    follow(run, "oracle")
    text = _Page(write_report(run).read_text(encoding="utf-8")).text
    for words in ("estimates of a link", "Predict", "promised", "estimated, with"):
        assert words not in text


@words_alone
def test_a_suspect_run_says_why_first(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=20)
    summary = json.loads((run / "summary.json").read_text())
    summary |= {"verdict": "suspect", "reasons": ["toronto->tokyo: rate +9.9% off what was asked (tolerance 2%)"]}
    summary["links"]["toronto->tokyo"]["rate_error_pct"] = 9.9
    (run / "summary.json").write_text(json.dumps(summary))
    html = write_report(run).read_text(encoding="utf-8")
    assert html.index("+9.9% off what was asked") < html.index("<svg")
    assert re.search(r'<td class="number bad">\+9.90</td>', html)


@words_alone
def test_a_rate_error_below_what_its_measurement_resolves_is_not_marked(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=20)
    summary = json.loads((run / "summary.json").read_text())
    summary["links"]["toronto->tokyo"] |= {"rate_error_pct": 9.9, "rate_resolution_pct": 8.0}
    (run / "summary.json").write_text(json.dumps(summary))
    html = write_report(run).read_text(encoding="utf-8")
    assert ">+9.90</td>" in html and not re.search(r'bad">\+9.90</td>', html)
    assert re.search(r"within 9.9 % of .*\(tolerance 2 %, .* 8 % more", answers(html)[QUESTIONS[1]])


@pytest.mark.parametrize(
    "left",
    [(), ("rounds.jsonl",), ("links.jsonl",), ("traffic.jsonl",), ("rounds.jsonl", "links.jsonl", "traffic.jsonl")],
)
def test_a_crashed_run_still_makes_a_page(tmp_path: Path, left: tuple[str, ...]) -> None:
    run = build_run(tmp_path / "run", rounds=30)
    for name in ({"rounds.jsonl", "links.jsonl", "traffic.jsonl", "decisions.jsonl"} - set(left)) | {"summary.json"}:
        (run / name).unlink()
    text = _Page(write_report(run).read_text(encoding="utf-8")).text
    assert "This run has not finished" in text
    assert "summary.json is missing" in text


@words_alone
def test_an_interrupted_run_says_so(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=30)
    (run / "summary.json").write_text('{"verdict": "suspect", "reasons": ["the run was interrupted"]}')
    text = _Page(write_report(run).read_text(encoding="utf-8")).text
    assert "This run has not finished" in text
    assert "the run was interrupted" in text


@words_alone
def test_the_page_of_a_command_that_failed_tells_of_no_rounds(tmp_path: Path) -> None:
    run = without_plans(build_run(tmp_path / "run", rounds=30))
    (run / "rounds.jsonl").unlink()
    manifest = json.loads((run / "manifest.json").read_text())
    began = manifest["training_started_s"]
    manifest |= {"spec": {"train": {"command": ["python", "train.py"]}}, "ended_s": began + 12.0}
    directory = MagicMock(path=run, read_whole=lambda _: manifest)
    (run / "summary.json").unlink()
    failed(directory, "toronto-w0 ended with exit code 1")
    (name, summary), _ = directory.write.call_args
    (run / name).write_text(json.dumps(summary))
    (run / "manifest.json").write_text(json.dumps(manifest))
    record = RunRecord.read(run)
    happened, *_ = opening(record, None)
    assert happened.answer[1] == "A command ran on the workers for 12 s."
    figures = {figure.name: figure.value for figure in key_figures(record)}
    assert figures["run time of the command"] == "12 s" and figures["over the WAN"] != UNKNOWN
    assert "rounds" not in figures and "lost updates" not in figures
    page = _Page(write_report(run).read_text(encoding="utf-8")).text
    assert "0 workers" not in page and "0 rounds" not in page
    (run / name).unlink()
    del manifest["ended_s"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert "rounds" not in " ".join(badge(RunRecord.read(run)).reasons), "neither where the run was cut off"


def comparison(runs: Sequence[Path]) -> str:
    target = runs[0].parent / "pages" / "comparison.html"
    return write_comparison([RunRecord.read(run) for run in runs], target).read_text(encoding="utf-8")


def test_runs_side_by_side(tmp_path: Path) -> None:
    runs = [
        build_run(tmp_path / f"{policy}-{seed}", rounds=30, seed=seed, policy=policy, slower=slower)
        for policy, slower in (("star", 2.0), ("mst", 1.0))
        for seed in (1, 2)
    ]
    html = comparison(runs)
    page = _Page(html)
    for label in ("star, seed 1", "star, seed 2", "mst, seed 1", "mst, seed 2"):
        assert label in page.text
    assert "By policy" in page.text
    happened, trusted, compared = answers(html).values()
    assert re.search(r"was the shortest in mst, seed \d with [\d.]+ s, and [12][\d.]* times as long in star", happened)
    assert trusted.startswith("4 of 4 runs are trusted")
    assert "star, mst" in compared and "seeds 1, 2" in compared
    assert len(page.ids) == len(set(page.ids))
    assert all(reference.startswith("#") for reference in page.references)


@words_alone
def test_one_run_and_one_member_are_counted_in_the_singular(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=12)
    html = comparison([run])
    assert "<h1>1 run side by side</h1>" in html
    record = RunRecord.read(run)
    record.__dict__["members"] = MEMBERS[:1]
    assert {figure.name: figure.detail for figure in key_figures(record)}["rounds"] == "1 member"


@words_alone
def test_what_controllers_knew_is_set_side_by_side(tmp_path: Path) -> None:
    runs = [build_run(tmp_path / f"{policy}", rounds=40, policy=policy) for policy in ("star", "mst", "ring")]
    for run, knowledge in zip(runs, ("measured", "measured", "oracle"), strict=True):
        follow(run, knowledge)
    html = comparison(runs)
    table = html[html.index("9 of 10 within") : html.index("predicted ÷ measured")]
    assert re.findall(r'<tr><td class="">(\w+)<', table) == ["star", "mst"], "the third was told the truth"


@words_alone
def test_what_was_set_otherwise_is_told(tmp_path: Path) -> None:
    runs = [build_run(tmp_path / f"run-{rounds}", rounds=rounds) for rounds in (12, 15)]
    (runs[1] / "summary.json").unlink()
    html = comparison(runs)
    assert '<th scope="col">train.rounds</th>' in html
    assert re.search(r"run-15</strong> is unfinished", html)


@words_alone
def test_equal_runs_get_names_of_their_own(tmp_path: Path) -> None:
    runs = [build_run(tmp_path / str(index) / "same", rounds=12) for index in range(2)]
    text = _Page(comparison(runs)).text
    assert "same #1" in text
    assert "same #2" in text
    assert "no difference" in text


@words_alone
def test_medians_are_those_of_runs_that_differ_in_their_seed_alone(tmp_path: Path) -> None:
    """All runs under a policy were one row, whatever their schemes."""
    runs = []
    for strategy in ("gradients", "diloco"):
        for seed in (1, 2):
            runs.append(build_run(tmp_path / f"{strategy}-{seed}", rounds=12, seed=seed))
            manifest = json.loads((runs[-1] / "manifest.json").read_text())
            manifest["spec"]["sync"]["strategy"] = strategy
            (runs[-1] / "manifest.json").write_text(json.dumps(manifest))
    page = _Page(comparison(runs))
    assert "mst, sync.strategy gradients" in page.text and "mst, sync.strategy diloco" in page.text
    page = _Page(comparison(runs[::2]))
    assert "By policy" not in page.text


@words_alone
@pytest.mark.parametrize(
    ("model", "said"),
    [("cnn", "trained cnn on digits for 12 rounds"), ("synthetic", "trained synthetic for 12 rounds")],
)
def test_the_first_sentence_names_the_model_and_what_it_learned(model: str, said: str, tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=12)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["spec"].setdefault("train", {}).update(model=model, dataset=None)
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert said in answers(write_report(run).read_text(encoding="utf-8"))[QUESTIONS[0]]
