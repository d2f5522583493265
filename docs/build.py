"""Builds the documentation site into site/, without a network: `make docs`.

The pages of docs/ and a few others of the repository are copied to build/docs, so that one set of Markdown files reads
well on a code host and on the site. Links between files become links of the site; a link to something outside it (a
source file, a folder) becomes plain text. Then Zensical builds, where a broken link or anchor is an error, and the HTML
is checked for anything that would be loaded from another host.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
STAGE, SITE = ROOT / "build" / "docs", ROOT / "site"
#: Pages from outside docs/, and their names on the site.
ALSO = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
    "checkpoints/smollm2-135m/README.md": "smollm2-checkpoints.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
#: Linked from their own pages, and too special for the navigation.
APART = {"smollm2-checkpoints.md"}
#: In a style: what it loads from another host.
STYLE = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')\s]+)")
#: Attributes by which a page loads something.
LOADS = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src")}


def sources() -> dict[Path, Path]:
    """Every file of the site, and where it goes."""
    found = {path: path.relative_to(ROOT / "docs") for path in sorted((ROOT / "docs").rglob("*")) if path.is_file()}
    pages = {path: place for path, place in found.items() if path.suffix in {".md", ".png", ".csv", ".css"}}
    return pages | {ROOT / path: Path(place) for path, place in ALSO.items()}


def relinked(page: Path, places: dict[Path, Path]) -> str:
    """The text of a page with its links as they are on the site."""

    def link(match: re.Match[str]) -> str:
        image, text, target, anchor = match[1], match[2], match[3], match[4] or ""
        if not target or ":" in target:
            return match[0]
        place = places.get((page.parent / target).resolve())
        if place is None:
            if not (page.parent / target).exists():
                sys.exit(f"{page.relative_to(ROOT)}: the link {target} leads to no file. Fix it, or remove it.")
            return text
        path = os.path.relpath(place, places[page].parent)
        dark = place.with_name(place.name.replace("-light.", "-dark."))
        if image and dark != place and dark in places.values():  # each theme has its picture
            return f"![{text}]({path}#only-light)![{text}]({path.replace(place.name, dark.name)}#only-dark)"
        return f"{image}[{text}]({path}{anchor})"

    text, kept = page.read_text(encoding="utf-8"), []
    # A link's own text may be code, so code is put aside by number and back afterwards.
    hidden = CODE.sub(lambda code: kept.append(code[0]) or f"\0{len(kept) - 1}\0", text)
    return re.sub(r"\0(\d+)\0", lambda number: kept[int(number[1])], LINK.sub(link, hidden))


def listed(entry: object) -> set[str]:
    """The pages of a part of the navigation."""
    parts = entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ()
    return {entry} if isinstance(entry, str) else set().union(*map(listed, parts))


def unlisted() -> set[str]:
    """Pages that no reader would find."""
    navigation = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    pages = {place.as_posix() for place in sources().values() if place.suffix == ".md"}
    return pages - listed(navigation) - APART


def stage() -> None:
    places = sources()
    shutil.rmtree(STAGE, ignore_errors=True)
    for path, place in places.items():
        (STAGE / place).parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            (STAGE / place).write_text(relinked(path, places), encoding="utf-8")
        else:
            shutil.copy(path, STAGE / place)


class _Loads(HTMLParser):
    """Collects what a page loads from elsewhere; links that a reader clicks are no concern."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            canonical = ("rel", "canonical") in attrs
            if (tag, name) in LOADS and value and not canonical and re.match(r"(https?:)?//", value):
                self.found.append(f"<{tag} {name}={value}>")


def loaded_from_elsewhere(site: Path) -> list[str]:
    """Everything that pages, styles and scripts of a built site load from another host."""
    found = []
    for path in sorted(site.rglob("*")):
        if path.suffix == ".html":
            page = _Loads()
            page.feed(path.read_text(encoding="utf-8"))
            loads = page.found
        elif path.suffix == ".css":
            loads = STYLE.findall(path.read_text(encoding="utf-8"))
        else:
            continue
        found += [f"{path.relative_to(site)}: {each}" for each in loads]
    return found


def main() -> None:
    if missing := unlisted():
        sys.exit(f"Not in the navigation: {', '.join(sorted(missing))}. Add each to `nav` in zensical.toml.")
    stage()
    shutil.rmtree(SITE, ignore_errors=True)
    program = Path(sys.executable).with_name("zensical")
    if subprocess.run([program, "build", "--strict", "--clean"], cwd=ROOT, check=False).returncode:
        sys.exit("The site was not built: see the warnings above, each of which is an error here.")
    if found := loaded_from_elsewhere(SITE):
        sys.exit("The site loads from other hosts:\n" + "\n".join(found))
    print(f"{SITE / 'index.html'}: {len(list(SITE.rglob('*.html')))} pages")


if __name__ == "__main__":
    main()
