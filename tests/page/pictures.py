"""Make the documentation's pictures of a finished run: `python -m tests.page.pictures runs/latest`.

docs/page.webp        the page as it plays the run, moving
docs/page-dark.png    one moment of it in dark, docs/page-phone.png on a phone
docs/report.png       the head of its report

`--widths FOLDER` makes others to look at: the whole report and the page at each width of a screen, in light and in
dark, and the report in print.
"""

from __future__ import annotations

import argparse
import base64
import io
import sys
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from tests.page.browser import Browser, Tab, viewer_address

DOCS = Path(__file__).parents[2] / "docs"

WIDE, PHONE = (1360, 1200), (390, 844)

#: The widths of screens, and of a sheet of A4 between margins of 1 cm at 96 pixels an inch.
WIDTHS, SHEET = (1000, 1280, 1600), 718

#: The moving picture: its number of moments, the time of each, and the longer time of the last.
MOMENTS, MOMENT_MS, LAST_MS = 48, 250, 2500
#: Its width in print, and how well it is kept: under a megabyte.
WIDTH, QUALITY = 1000, 62

#: Charts and lists are drawn at most so much later than the map.
TOLD = "new Promise(done => setTimeout(done, 450))"

#: The scrubber, moved to a part of its way.
MOVE = """{
  const scrubber = document.getElementById("scrubber");
  scrubber.value = scrubber.max * PART;
  scrubber.dispatchEvent(new Event("input"));
}"""

#: The moment that stands for the run where there is one picture: while a link had dropped, in the quickstart.
STANDS_FOR = 0.3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's directory, such as runs/latest")
    parser.add_argument("--link", default="washington->london", help="the link that is chosen")
    parser.add_argument("--out", type=Path, default=DOCS, metavar="FOLDER")
    parser.add_argument("--widths", type=Path, metavar="FOLDER", help="the run's pages at several widths, instead")
    args = parser.parse_args()
    if args.widths is not None:
        args.widths.mkdir(parents=True, exist_ok=True)
        with Browser() as browser:
            for file in save_widths(browser, args.run, args.link, args.widths):
                print(file)
        return 0
    with Browser() as browser:
        with viewer_address(args.run) as page:
            tab = open_page(browser, page, args.link, WIDE, "light")
            save_moving([picture_at(tab, place / (MOMENTS - 1)) for place in range(MOMENTS)], args.out / "page.webp")
            tab = open_page(browser, page, args.link, WIDE, "dark")
            picture_at(tab, STANDS_FOR).save(args.out / "page-dark.png", optimize=True)
            tab = open_page(browser, page, args.link, PHONE, "light")
            picture_at(tab, STANDS_FOR).save(args.out / "page-phone.png", optimize=True)
        tab = report_tab(browser, args.run, WIDE[0])
        picture(tab).save(args.out / "report.png", optimize=True)
    for file in ("page.webp", "page-dark.png", "page-phone.png", "report.png"):
        print(f"{args.out / file}: {(args.out / file).stat().st_size / 1e3:.0f} kB")
    return 0


def report_tab(browser: Browser, run: Path, width: int, height: int = WIDE[1]) -> Tab:
    """Return a tab with a run's report, drawn."""
    tab = browser.tab()
    tab.resize(width, height)
    tab.open(f"file://{(run / 'report.html').resolve()}")
    tab.until("document.readyState === 'complete'")
    return tab


def save_widths(browser: Browser, run: Path, link: str, folder: Path) -> Iterator[Path]:
    """Save the report and the page at each width, in light and in dark, and the report as it is printed."""
    for scheme in ("light", "dark"):
        for width in WIDTHS:
            tab = report_tab(browser, run, width)
            tab.prefer(scheme)
            yield save(picture(tab, whole=True), folder / f"report-{width}-{scheme}.png")
    tab = report_tab(browser, run, SHEET)
    tab.print_to(folder / "report.pdf")
    yield folder / "report.pdf"
    tab.show_as_print()
    yield save(picture(tab, whole=True), folder / "report-print.png")
    with viewer_address(run) as page:
        for scheme in ("light", "dark"):
            for width in WIDTHS:
                tab = open_page(browser, page, link, (width, WIDE[1]), scheme)
                picture_at(tab, STANDS_FOR)
                yield save(picture(tab, whole=True), folder / f"page-{width}-{scheme}.png")


def save(shot: Image.Image, file: Path) -> Path:
    """Save a picture and return its file."""
    shot.save(file)
    return file


def open_page(browser: Browser, page: str, link: str, size: tuple[int, int], scheme: str) -> Tab:
    """Open a tab with the page, drawn, with a link chosen."""
    tab = browser.tab()
    tab.prefer(scheme)
    tab.resize(*size)
    tab.open(page)
    tab.until("document.querySelector('#map .link') && document.getElementById('scrubber')?.value > 0")
    tab.value(f"document.querySelector('[data-link=\"{link}\"]').dispatchEvent(new MouseEvent('click'))")
    return tab


def picture_at(tab: Tab, part: float) -> Image.Image:
    """Move the page to a part of the run's time, and return its picture."""
    tab.value(MOVE.replace("PART", str(part)))
    tab.value(TOLD)
    return picture(tab)


def picture(tab: Tab, whole: bool = False) -> Image.Image:
    """Return what is on the screen, or the `whole` page."""
    tab.do("Page.bringToFront")
    shot = base64.b64decode(tab.do("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])
    return Image.open(io.BytesIO(shot)).convert("RGB")


def save_moving(pictures: list[Image.Image], file: Path) -> None:
    """Save pictures as one moving picture, which repeats."""
    height = round(WIDTH * pictures[0].height / pictures[0].width)
    first, *others = (one.resize((WIDTH, height), Image.Resampling.LANCZOS) for one in pictures)
    durations = [MOMENT_MS] * (len(pictures) - 1) + [LAST_MS]
    first.save(
        file,
        save_all=True,
        append_images=others,
        duration=durations,
        loop=0,
        quality=QUALITY,
        method=4,
        minimize_size=True,
    )


if __name__ == "__main__":
    sys.exit(main())
