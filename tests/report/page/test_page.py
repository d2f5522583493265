"""The report as a reader has it: light and dark, on a telephone and a desk, with links that lead somewhere."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from trustmopd.report.page.report import write_report
from trustmopd.report.readers.run import find_runs


@pytest.fixture(scope="module")
def report(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of several runs, with every figure."""
    return write_report(find_runs([study]), tmp_path_factory.mktemp("report"))


def corner(page: Any, place: int) -> tuple[int, ...]:
    """The colour in the corner of a figure, as it is on the screen."""
    shown = page.locator("figure img").nth(place)
    shown.scroll_into_view_if_needed()
    return Image.open(io.BytesIO(shown.screenshot())).convert("RGB").getpixel((2, 2))


def background(page: Any) -> tuple[int, ...]:
    said = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return tuple(map(int, re.findall(r"\d+", said)))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_follow_the_theme_of_the_system_and_of_the_button(visit: Callable, report: Path, scheme: str) -> None:
    page = visit(report, color_scheme=scheme)
    seen = []
    for _ in range(2):
        seen.append(background(page))
        assert {corner(page, place) for place in range(page.locator("figure img").count())} == {seen[-1]}
        page.click("#theme")
    assert sorted(seen) == [(22, 24, 28), (255, 255, 255)]


def test_figures_and_page_fit_a_telephone_without_scrolling_aside(visit: Callable, report: Path) -> None:
    page = visit(report)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    images = page.locator("figure img")
    assert images.count() == 10
    for box in [image.bounding_box() for image in images.all()]:
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390
    sizes = images.evaluate_all("all => all.map(image => image.width / image.naturalWidth)")
    assert min(sizes) > 0.85  # or text would be too small to read
    table = page.locator("#viewer-candidates")  # all columns, or else it scrolls under a shadow
    assert table.evaluate("box => box.scrollWidth <= box.clientWidth || getComputedStyle(box).overflowX === 'auto'")


def test_the_contents_lead_to_every_section_figure_and_table(visit: Callable, report: Path) -> None:
    page = visit(report)
    links = [link.get_attribute("href") for link in page.locator("nav a").all()]
    named = page.eval_on_selector_all("h2[id], h3[id]", "all => all.map(heading => '#' + heading.id)")
    written = [name for name in named if not name.startswith("#viewer-")]  # the viewer's own headings
    assert sorted(links) == sorted(written) and len(set(links)) == len(links)
    for title in ("Figures", "Scores by domain", "Tables", "Computational cost", "Token by token"):
        page.click(f"nav a:text-is('{title}')")
        target = page.locator(page.evaluate("location.hash"))
        assert target.inner_text() == title and target.bounding_box()["y"] < page.viewport_size["height"]
