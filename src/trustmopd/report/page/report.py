"""The report: one file that opens from disk without a network. What happened first, then why, then everything."""

import base64
import html
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from trustmopd.report.figures import draw_all
from trustmopd.report.figures.drawing import Picture
from trustmopd.report.page.case_studies import read_cases
from trustmopd.report.page.story import story
from trustmopd.report.page.viewer import RESPONSES, make_viewer
from trustmopd.report.readers.run import Run, find_runs, open_run
from trustmopd.report.statistics.comparison import Comparison, compare
from trustmopd.report.statistics.summary import Summary, summarise_run
from trustmopd.report.tables import all_tables, write_tables
from trustmopd.report.tables.titled import Titled
from trustmopd.runs import as_commands, folder_of
from trustmopd.runs.layout import ANALYSIS, FIGURES, MANIFEST, RECIPE, REPORT, TABLES, VIEWER
from trustmopd.util.files import check_writable, write_json, write_text
from trustmopd.util.messages import first_few

_ASSETS = Path(__file__).parent / "assets"
_OWN = {"css": "style.css", "theme_js": "theme.js", "viewer_js": "viewer.js"}


def analyse(run: Run) -> tuple[Summary, list[Titled], list[Picture]]:
    """One run's statistics, tables and figures, in its own folder."""
    comparison = compare([summarise_run(run)])
    (summary,) = comparison.runs
    tables, pictures = _tables_and_figures(comparison, run.path)
    write_json(run.path / ANALYSIS, summary.to_dict())
    return summary, tables, pictures


def write_report(
    runs: Sequence[Run],
    out: Path,
    *,
    title: str | None = None,
    notes: Sequence[str] = (),
    responses: int = RESPONSES,
) -> Path:
    """Writes everything about one run, or a comparison of several, to `out`. `notes` follow the first sentences."""
    bar = tqdm(runs, desc="Reading runs", unit="run", disable=len(runs) < 3)
    comparison = compare(summarise_run(run) for run in bar)
    tables, pictures = _tables_and_figures(comparison, out)
    if len(runs) == 1:
        write_json(out / ANALYSIS, comparison.runs[0].to_dict())
    by_path = {str(run.path): run for run in runs}
    recorded = [*comparison.trusting(), *(run for run in comparison.runs if run.rollouts)]
    chosen = by_path[recorded[0].path] if recorded else None
    named = len(runs) > 1
    where = ", ".join(map(comparison.label, comparison.settings))
    page = render(
        title or (f"{len(runs)} runs on {where}" if named else runs[0].title),
        summary=[*story(comparison), *notes],
        warnings=[
            *comparison.warnings,
            *(f"{run.path}: {warning}" if named else warning for run in comparison.runs for warning in run.warnings),
        ],
        tables=tables,
        pictures=pictures,
        viewer=make_viewer(chosen, chosen.records(candidates=True), responses) if chosen else None,
        cases=read_cases(runs),
        missing=_missing(comparison.runs),
        documents=[document for run in comparison.one_seed() for document in _documents(by_path[run.path], named)],
    )
    return write_text(out / REPORT, page)


@dataclass(frozen=True)
class Page:
    """A page that was written, and that a notebook shows."""

    path: Path

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"))
        return f'<div><iframe srcdoc="{page}" width="100%" height="1100" style="border: 0"></iframe></div>'


def report(*runs: Any, out: str | Path | None = None, responses: int = RESPONSES) -> Page:
    """The report on runs, given by their folders or their trainers; of several, `out` is its folder."""
    folders = [folder_of(run) for run in runs]
    found, folder = find_runs(folders), Path(out or _common(folders))
    check_writable(folder, "--out")
    return Page(write_report(found, folder, responses=responses))


def viewer(run: Any, responses: int = RESPONSES) -> Page:
    """The token viewer of a run, given by its folder or its trainer."""
    opened = open_run(folder_of(run))
    made = make_viewer(opened, opened.records(candidates=True), responses)
    if made is None:
        raise ValueError(f"{opened.path} has no token records. Train with record_allocation_every above 0.")
    return Page(write_text(opened.path / VIEWER, render(opened.title, viewer=made)))


def render(title: str, **content: Any) -> str:
    """The page. Everything that comes from data is escaped by the template; our own scripts and styles, and the
    viewer's JSON (`script_json`) and base64, are not. Commands in backticks are set as code."""
    try:
        from jinja2 import Environment, FileSystemLoader
        from markupsafe import Markup, escape
    except ImportError as error:  # pragma: no cover
        raise ValueError("the report needs Jinja2. Install it: pip install 'trustmopd[viewer]'") from error
    environment = Environment(loader=FileSystemLoader(_ASSETS), autoescape=True)
    environment.filters["commands"] = lambda text: Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))
    environment.filters["as_image"] = _data_uri
    environment.filters["unescaped"] = Markup
    own = {name: Markup((_ASSETS / file).read_text(encoding="utf-8")) for name, file in _OWN.items()}
    return environment.get_template(REPORT).render(title=title, contents=_contents(content), **content, **own)


@dataclass(frozen=True)
class PageSection:
    """An entry of the table of contents, and those below it: (anchor, title)."""

    id: str
    title: str
    parts: Sequence[tuple[str, str]] = ()


def _contents(page: dict[str, Any]) -> list[PageSection]:
    """The page's sections, in order. The first table is at the top."""
    tables = tuple((f"table-{table.name}", table.title) for table in page.get("tables", ()))
    pictures = tuple((f"figure-{picture.path.name}", picture.title) for picture in page.get("pictures", ()))
    cases = tuple((f"case-{number}", case.title) for number, case in enumerate(page.get("cases", ()), start=1))
    sections = {
        PageSection("tokens", "Token by token"): page.get("viewer"),
        PageSection("figures", "Figures", pictures): pictures,
        PageSection("cases", "Case studies", cases): cases,
        PageSection("tables", "Tables", tables[1:]): tables[1:],
        PageSection("missing", "What is not here"): page.get("missing"),
        PageSection("documents", "Recipe and manifest"): page.get("documents"),
    }
    first = [PageSection(*table) for table in tables[:1]]
    return [*first, *(section for section, content in sections.items() if content)]


def _tables_and_figures(comparison: Comparison, out: Path) -> tuple[list[Titled], list[Picture]]:
    tables = all_tables(comparison)
    write_tables(tables, out / TABLES)
    return tables, draw_all(comparison, out / FIGURES)


def _data_uri(picture: Picture) -> str:
    """Embedded as an image: ids of several SVGs on one page would clash, and an image runs no scripts."""
    content = picture.path.with_name(picture.path.name + ".svg").read_bytes()
    return f"data:image/svg+xml;base64,{base64.b64encode(content).decode()}"


def _missing(runs: Sequence[Summary]) -> list[str]:
    """Each gap once, with the runs that have it if there are several."""
    lacking: dict[str, list[str]] = {}
    for run in runs:
        for gap in run.missing:
            lacking.setdefault(str(gap), []).append(run.path)

    def whose(paths: list[str]) -> str:
        return "All runs" if len(paths) == len(runs) else first_few(paths, 4 if len(paths) == 4 else 3)

    return [
        (f"{whose(paths)}: " if len(runs) > 1 else "") + as_commands(gap, paths[0]) for gap, paths in lacking.items()
    ]


def _documents(run: Run, named: bool) -> list[tuple[str, str]]:
    manifest = json.dumps(run.manifest, indent=2, ensure_ascii=False) if run.manifest else ""
    texts = {RECIPE: run.recipe_text, MANIFEST: manifest}
    return [(str(run.path / name) if named else name, text) for name, text in texts.items() if text]


def _common(paths: Sequence[Path]) -> Path:
    """The folder that was given, or the deepest that holds all of them."""
    if len(paths) == 1:
        return paths[0]
    shared, here = Path(os.path.commonpath([path.resolve() for path in paths])), Path.cwd().resolve()
    if shared == here or shared in here.parents:
        raise ValueError(
            f"{shared} is the deepest folder that holds all of these runs, and no place for a report. Choose a "
            "folder: --out FOLDER, in Python out=FOLDER."
        )
    return shared
