"""The site's own checks: what it stages, what it would miss, and what it must not load."""

import importlib.util
from pathlib import Path

import pytest

import trustmopd
from trustmopd import heads, method

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs" / "build.py")
assert _spec and _spec.loader
build = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(build)


def test_every_page_is_in_the_navigation() -> None:
    assert build.unlisted() == set()


def test_links_between_files_become_links_of_the_site() -> None:
    places = build.sources()
    text = build.relinked(ROOT / "README.md", places)
    assert "](concepts.md)" in text and "](contributing.md)" in text and "](docs/" not in text
    assert "[`recipes/`]" not in text and "`recipes/`" in text, "a folder has no page"
    assert "](../CONTRIBUTING.md" not in build.relinked(ROOT / "docs" / "evaluation.md", places)


def test_a_link_to_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text("[here](nowhere.md)")
    with pytest.raises(SystemExit, match="nowhere.md"):
        build.relinked(tmp_path / "page.md", {tmp_path / "page.md": Path("page.md")})


def test_what_a_page_would_load_from_another_host_is_found(tmp_path: Path) -> None:
    (tmp_path / "fine.html").write_text('<a href="https://a.org">x</a><img src="a.png"><script src="a.js"></script>')
    assert build.loaded_from_elsewhere(tmp_path) == []
    (tmp_path / "page.html").write_text('<link href="https://fonts.org/x.css"><script src="//cdn.org/x.js"></script>')
    (tmp_path / "style.css").write_text("@import 'https://a.org/x.css'; b { background: url(//b.org/x.png) }")
    assert len(build.loaded_from_elsewhere(tmp_path)) == 4


def test_the_reference_has_every_public_name() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    documented = [line.removeprefix("::: ") for line in pages.splitlines() if line.startswith("::: ")]
    homes = {
        name: getattr(package, name).__module__
        for package in (trustmopd, method, heads)
        for name in package.__all__
        if callable(getattr(package, name))
    }
    missing = {name for name, home in homes.items() if home not in documented and f"{home}.{name}" not in documented}
    assert missing == set()
