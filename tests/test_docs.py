"""The documentation's links lead somewhere, and the site has every page; `make docs` checks the same of the site."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.run.conclusion.summary_fields import DurationFields, SummaryFields, SyncFields, TrainingFields
from testbed.run.sweep.comparison import FIGURES, TO_LOSS

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)

#: The pages that docs/site.py makes from the program; `make docs` checks links to them.
GENERATED = {"reference/commands.md", "reference/files.md", "reference/api.md"}


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings: small letters, digits and dashes."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_leads_to_a_file_and_a_heading_in_it(page: Path) -> None:
    for link in LINK.findall(CODE.sub("", page.read_text())):
        if "://" in link or link.partition("#")[0] in GENERATED:
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), link
        assert not anchor or anchor in anchors(file), link


def test_the_page_on_results_names_the_figures_that_programs_read() -> None:
    text = (ROOT / "docs" / "report.md").read_text()
    sections = (SummaryFields, TrainingFields, SyncFields, DurationFields)
    names = {name for section in sections for name in section.__struct_fields__}
    assert {name for name in {*names, *FIGURES, TO_LOSS} if f"`{name}`" not in text} == set()


def test_the_site_has_every_page() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert {*listed(nav)} - GENERATED == {page.name for page in (ROOT / "docs").glob("*.md")}


def test_pages_of_the_site_link_to_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to a file of the checkout, or to a heading in it, becomes the file's name."""
    spec = spec_from_file_location("site_of_docs", ROOT / "docs" / "site.py")
    assert spec and spec.loader
    site = module_from_spec(spec)
    spec.loader.exec_module(site)
    monkeypatch.setattr(site, "reference", dict)
    site.write(tmp_path / "site")
    for page in (tmp_path / "site").glob("*.md"):
        assert not [link for link in LINK.findall(CODE.sub("", page.read_text())) if link.startswith("../")], page


def listed(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [name for each in (value.values() if isinstance(value, dict) else value) for name in listed(each)]
