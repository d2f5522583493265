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


def test_a_page_that_is_whole_has_no_slips(tmp_path: Path) -> None:
    for name in ("a.png", "a b.png", "a.js", "index.html", "sub/page.html"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "fine.html").write_text(
        '<a href="https://a.org">x</a><a href="sub/page.html?q#here">x</a><a href="#here">x</a>'
        '<a href="mailto:a@b">x</a><a href="./">x</a>'
        '<link rel="canonical" href="https://a.org"><img src="a%20b.png#only-light" srcset="/a.png 2x, a.png 3x">'
        '<script src="a.js"></script><style>b { background: url(data:image/png;base64,AA) }</style>'
        "<p>url(//a.org/b.png)</p><script>// a comment\nlocation = 'fine.html'</script>"
    )
    assert build.slips(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        '<link href="https://fonts.org/x.css">',
        '<script src="//cdn.org/x.js"></script>',
        '<script>fetch("https://a.org/x.json")</script>',
        "<style>@import 'https://a.org/x.css';</style>",
        '<p style="background: url(//a.org/x.png)">x</p>',
        '<img srcset="https://a.org/x.png 2x">',
        '<object data="https://a.org/x.svg"></object>',
        '<svg><image xlink:href="https://a.org/x.png"/></svg>',
        '<pre class="mermaid x">a</pre>',
        '<a href="nowhere.html">x</a>',
        '<a href="/nowhere.html#here">x</a>',
        '<a href="../outside.html">x</a>',
        '<a href=".">a folder without a page</a>',
        '<img src="nowhere.png">',
        '<img srcset="nowhere.png 2x">',
    ],
)
def test_what_a_page_would_load_from_another_host_or_not_find_is_found(text: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (tmp_path / "outside.html").touch()
    (site / "page.html").write_text(text)
    (slip,) = build.slips(site)
    assert slip.startswith("page.html: ")


def test_so_is_what_a_style_or_a_script_would(tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text("@import 'https://a.org/x.css'; b { background: url(../nowhere.png) }")
    (tmp_path / "script.js").write_text("fetch('//a.org/x.json')")
    assert [slip.split(":")[0] for slip in build.slips(tmp_path)] == ["script.js", "style.css", "style.css"]


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
