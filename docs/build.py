"""Builds the documentation site into site/, without a network: `make docs`.

The pages of docs/ and a few others of the repository are copied to build/docs, so that one set of Markdown files reads
well on a code host and on the site. Links between files become links of the site; a link to something outside it (a
source file, a folder) becomes plain text. Then Zensical builds, where a broken link or anchor of Markdown is an error.
Last, pages and styles are read: what they would load from another host is an error, and so is a file that they load or
link to and that is not there. Of scripts only addresses are read, and none of the theme's own, which load from other
hosts for elements of a few classes alone: a page with such an element is an error.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
STAGE, SITE = ROOT / "build" / "docs", ROOT / "site"
#: Pages from outside docs/, and their names on the site.
ALSO = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
    "studies/small_world/README.md": "study-small-world.md",
    "studies/small_world/LOG.md": "study-small-world-log.md",
    "checkpoints/smollm2-135m/README.md": "smollm2-checkpoints.md",
    "studies/smollm2/README.md": "smollm2.md",
    "studies/smollm2/LOG.md": "smollm2-log.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
#: Linked from their own pages, and too special for the navigation.
APART = {"smollm2-checkpoints.md", "study-small-world-log.md", "smollm2-log.md"}
#: In a style: what it loads.
STYLE = re.compile(r"(?:url\(|@import)\s*[\"']?([^\"')\s]+)")
#: In a script: an address on another host.
SCRIPT = re.compile(r"[\"'`]((?:\w+:)?//[^\"'`\s]+)")
#: Attributes by which a page loads something. So does `href`, but not where a reader clicks on it.
LOADS = {"src", "poster", "data", "href", "xlink:href"}
CLICKED = {"a", "area"}
#: For these classes of elements the theme's scripts load a library from another host.
FETCHING = {"mermaid", "glightbox", "pyodide"}
THEME_SCRIPTS = Path("assets", "javascripts")


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


class _Page(HTMLParser):
    """Collects what a page loads, what it links to, and what it loads from another host for certain."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.elsewhere: list[str] = []
        self._tag = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        for name, value in attrs:
            if not value or (name == "href" and ("rel", "canonical") in attrs):
                continue
            if name in LOADS:
                (self.links if tag in CLICKED else self.loads).append(value)
            elif name == "srcset":
                self.loads += [each.split()[0] for each in value.split(",") if each.strip()]
            elif name == "style":
                self.loads += STYLE.findall(value)
            elif name == "class":
                self.elsewhere += [f'class="{each}"' for each in FETCHING.intersection(value.split())]

    def handle_data(self, data: str) -> None:
        if self._tag == "style":
            self.loads += STYLE.findall(data)
        elif self._tag == "script":
            self.elsewhere += SCRIPT.findall(data)

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""


def slips(site: Path) -> list[str]:
    """What a built site loads from another host, and what it loads or links to that is not there. Read are pages with
    their styles and scripts, style sheets, and scripts other than the theme's: of those, only what makes them load."""
    found = []
    for path in sorted(site.rglob("*")):
        place = path.relative_to(site)
        loads, links, elsewhere = [], [], []
        if path.suffix == ".html":
            page = _Page(path.read_text(encoding="utf-8"))
            loads, links, elsewhere = page.loads, page.links, page.elsewhere
        elif path.suffix == ".css":
            loads = STYLE.findall(path.read_text(encoding="utf-8"))
        elif path.suffix == ".js" and not place.is_relative_to(THEME_SCRIPTS):
            elsewhere = SCRIPT.findall(path.read_text(encoding="utf-8"))
        elsewhere += [each for each in loads if urlsplit(each).netloc]
        found += [f"{place}: {each} is loaded from another host" for each in elsewhere]
        found += [f"{place}: {each} leads to no file" for each in (*loads, *links) if _leads_nowhere(each, path, site)]
    return found


def _leads_nowhere(target: str, page: Path, site: Path) -> bool:
    parts = urlsplit(target)
    if parts.scheme or parts.netloc or not parts.path:
        return False  # another host, data, mail; or a place on the same page
    path = unquote(parts.path)
    file = (site / path.lstrip("/") if path.startswith("/") else page.parent / path).resolve()
    file = file / "index.html" if file.is_dir() else file
    return not (file.is_file() and file.is_relative_to(site.resolve()))


def main() -> None:
    if missing := unlisted():
        sys.exit(f"Not in the navigation: {', '.join(sorted(missing))}. Add each to `nav` in zensical.toml.")
    stage()
    shutil.rmtree(SITE, ignore_errors=True)
    program = Path(sys.executable).with_name("zensical")
    if subprocess.run([program, "build", "--strict", "--clean"], cwd=ROOT, check=False).returncode:
        sys.exit("The site was not built: see the warnings above, each of which is an error here.")
    if found := slips(SITE):
        sys.exit("\n".join([*found, "Fix these: the site must be whole, and load nothing from other hosts."]))
    print(f"{SITE / 'index.html'}: {len(list(SITE.rglob('*.html')))} pages")


if __name__ == "__main__":
    main()
