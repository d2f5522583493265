"""The report: one file that opens from disk without a network. What happened first, then why, then everything."""

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm.auto import tqdm

from trustmopd.analysis.figures import draw_all
from trustmopd.analysis.figures.drawing import Picture
from trustmopd.analysis.page.case_studies import Case, read_cases
from trustmopd.analysis.page.story import MORE_SEEDS, next_steps, story
from trustmopd.analysis.page.viewer import RESPONSES, Viewer, make_viewer
from trustmopd.analysis.readers.run import Run, as_commands
from trustmopd.analysis.statistics.comparison import Comparison, compare
from trustmopd.analysis.statistics.same_experiment import told_apart
from trustmopd.analysis.statistics.summary import Summary, summarise_run
from trustmopd.analysis.tables import all_tables, write_tables
from trustmopd.analysis.tables.titled import Titled, label_in, one_seed, the_trusting
from trustmopd.files import write_json, write_text
from trustmopd.runs.layout import ANALYSIS, FIGURES, MANIFEST, RECIPE, REPORT, TABLES, VIEWER

_ASSETS = Path(__file__).parent / "assets"


def analyse(run: Run, out: Path | None = None) -> tuple[Summary, list[Titled], list[Picture]]:
    """One run's statistics, tables and figures, in its own folder."""
    out = out or run.path
    (found,) = told_apart([summarise_run(run)])
    comparison = compare([found])
    tables, pictures = _tables_and_figures([found], comparison, out)
    found.missing.extend(comparison.missing)
    write_json(out / ANALYSIS, found.to_dict())
    return found, tables, pictures


def write_report(
    runs: Sequence[Run],
    out: Path,
    *,
    title: str | None = None,
    notes: Sequence[str] = (),
    more_seeds: str = MORE_SEEDS,
    responses: int = RESPONSES,
) -> Path:
    """Everything of one run, or a comparison of several, into `out`. `notes` follow its first sentences; `more_seeds`
    says how to train them."""
    bar = tqdm(runs, desc="Reading runs", unit="run", disable=len(runs) < 3)
    summaries = told_apart([summarise_run(run) for run in bar])
    comparison = compare(summaries)
    tables, pictures = _tables_and_figures(summaries, comparison, out)
    if len(runs) == 1:
        write_json(out / ANALYSIS, summaries[0].to_dict())
    by_path = {str(run.path): run for run in runs}
    shown = next(iter((*the_trusting(comparison), *(run for run in summaries if run.rollouts))), None)
    chosen = by_path[shown.path] if shown else None
    named = len(runs) > 1
    where = ", ".join(map(label_in(comparison), comparison.settings))
    page = render(
        title=title or (f"{len(runs)} runs on {where}" if named else runs[0].title),
        summary=[*story(summaries, comparison), *notes],
        next_steps=next_steps(summaries, comparison, more_seeds),
        warnings=[
            *comparison.warnings,
            *(f"{run.path}: {each}" if named else each for run in summaries for each in run.warnings),
        ],
        tables=tables,
        pictures=pictures,
        viewer=make_viewer(chosen, chosen.records(candidates=True), responses) if chosen else None,
        cases=read_cases(runs),
        missing=[*_missing(summaries), *map(str, comparison.missing)],
        documents=[document for run in one_seed(comparison) for document in _documents(by_path[run.path], named)],
    )
    return write_text(out / REPORT, page)


def write_viewer(run: Run, responses: int = RESPONSES) -> Path | None:
    """The token viewer on a page of its own, `viewer.html` in the run's folder."""
    viewer = make_viewer(run, run.records(candidates=True), responses)
    if viewer is None:
        return None
    return write_text(run.path / VIEWER, render(run.title, viewer=viewer))


def render(
    title: str,
    *,
    summary: Sequence[str] = (),
    next_steps: Sequence[str] = (),
    warnings: Sequence[str] = (),
    tables: Sequence[Titled] = (),
    pictures: Sequence[Picture] = (),
    viewer: Viewer | None = None,
    cases: Sequence[Case] = (),
    missing: Sequence[str] = (),
    documents: Sequence[tuple[str, str]] = (),
) -> str:
    """The page. Everything that comes from data is escaped by the template; our own scripts and styles, and the
    viewer's JSON (`script_json`) and base64, are not. Commands in backticks are set as code."""
    try:
        from jinja2 import Environment, FileSystemLoader
        from markupsafe import Markup, escape
    except ImportError as error:  # pragma: no cover
        raise ValueError("the report needs Jinja2. Install it with: pip install 'trustmopd[viewer]'") from error
    environment = Environment(loader=FileSystemLoader(_ASSETS), autoescape=True)
    environment.filters["commands"] = lambda text: Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))
    safe = {name: Markup((_ASSETS / file).read_text(encoding="utf-8")) for name, file in _OWN.items()}
    return environment.get_template("report.html").render(
        title=title,
        contents=_contents(next_steps, viewer, pictures, cases, tables, missing, documents),
        summary=summary,
        next_steps=next_steps,
        warnings=warnings,
        tables=tables,
        pictures=[(picture, _data_uri(picture)) for picture in pictures],
        viewer=viewer and {"about": viewer.about, "data": Markup(viewer.data), "responses": viewer.responses},
        cases=[(case, case.picture and _data_uri(case.picture)) for case in cases],
        missing=missing,
        documents=documents,
        **safe,
    )


@dataclass(frozen=True)
class Section:
    """An entry of the table of contents, and those below it: (anchor, title)."""

    id: str
    title: str
    parts: Sequence[tuple[str, str]] = ()


def _contents(
    next_steps: Sequence[str],
    viewer: Viewer | None,
    pictures: Sequence[Picture],
    cases: Sequence[Case],
    tables: Sequence[Titled],
    missing: Sequence[str],
    documents: Sequence[tuple[str, str]],
) -> list[Section]:
    """The page's sections, in its order. The first table stands at its top."""
    first = [Section(f"table-{each.name}", each.title) for each in tables[:1]]
    below = [(f"table-{each.name}", each.title) for each in tables[1:]]
    sections = {
        Section("next", "What to try next"): next_steps,
        Section("tokens", "Token by token"): viewer,
        Section("figures", "Figures", tuple((f"figure-{p.path.name}", p.title) for p in pictures)): pictures,
        Section("cases", "Case studies", tuple((f"case-{n}", c.title) for n, c in enumerate(cases, start=1))): cases,
        Section("tables", "Tables", tuple(below)): below,
        Section("missing", "What is not here"): missing,
        Section("documents", "Recipe and manifest"): documents,
    }
    return [*first, *(section for section, content in sections.items() if content)]


_OWN = {"css": "style.css", "theme_js": "theme.js", "viewer_js": "viewer.js"}


def _tables_and_figures(
    summaries: Sequence[Summary], comparison: Comparison, out: Path
) -> tuple[list[Titled], list[Picture]]:
    tables = all_tables(summaries, comparison)
    write_tables(tables, out / TABLES)
    return tables, draw_all(summaries, comparison, out / FIGURES)


def _data_uri(picture: Picture) -> str:
    """As an image: ids of several SVGs in one page would clash, and an image runs no scripts."""
    content = picture.path.with_name(picture.path.name + ".svg").read_bytes()
    return f"data:image/svg+xml;base64,{base64.b64encode(content).decode()}"


def _missing(summaries: Sequence[Summary]) -> list[str]:
    """Each thing once, with the runs that lack it where there are several."""
    lacking: dict[str, list[str]] = {}
    for run in summaries:
        for each in run.missing:
            lacking.setdefault(str(each), []).append(run.path)
    whose = (f"{'All runs' if len(paths) == len(summaries) else _shortened(paths)}: " for paths in lacking.values())
    return [
        (who if len(summaries) > 1 else "") + as_commands(said, paths[0])
        for who, (said, paths) in zip(whose, lacking.items(), strict=True)
    ]


def _shortened(paths: Sequence[str], shown: int = 3) -> str:
    more = len(paths) - shown
    return ", ".join(paths) if more <= 1 else f"{', '.join(paths[:shown])} and {more} more"


def _documents(run: Run, named: bool) -> list[tuple[str, str]]:
    found = [(RECIPE, run.recipe_text)] if run.recipe_text else []
    if run.manifest:
        found.append((MANIFEST, json.dumps(run.manifest, indent=2, ensure_ascii=False)))
    return [(str(run.path / name) if named else name, text) for name, text in found]
