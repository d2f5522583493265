"""The site's own checks: every page is led to, nothing is missing, and nothing is loaded from elsewhere."""

import importlib.util
from pathlib import Path

import pytest

import trustmopd
from trustmopd import heads, method
from trustmopd.report.page.report import report

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs" / "build.py")
assert _spec and _spec.loader
build = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(build)


def test_every_page_is_in_the_navigation() -> None:
    assert build.unlisted() == set()


def test_a_link_to_nothing_and_what_is_loaded_from_another_host_are_found(tmp_path: Path) -> None:
    elsewhere = '<a href="https://a.org">x</a><a href="nowhere.html">x</a><img src="https://a.org/x.png">'
    (tmp_path / "page.html").write_text(elsewhere)
    assert len(build.slips(tmp_path)) == 2


def test_the_reference_has_every_public_name() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    documented = [line.removeprefix("::: ") for line in pages.splitlines() if line.startswith("::: ")]
    homes = {
        name: getattr(package, name).__module__
        for package in (trustmopd, method, heads)
        for name in package.__all__
        if callable(getattr(package, name))
    }
    homes["report"] = report.__module__  # the package of that name is the function too
    missing = {name for name, home in homes.items() if home not in documented and f"{home}.{name}" not in documented}
    assert missing == set()
