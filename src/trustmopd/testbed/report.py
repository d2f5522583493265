"""`report.html`: one file that opens from disk. What happened, the pictures, and a few responses token by token."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from trustmopd.testbed.experiment import STORY, Scale
from trustmopd.testbed.tasks import DOMAINS

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --math: 0 114 178; --code: 230 159 0; --if: 0 158 115; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; } th, td { padding: .25rem .8rem; text-align: right; }
th:first-child, td:first-child { text-align: left; } tr + tr td { border-top: 1px solid var(--line); }
svg { max-width: 100%; height: auto; background: white; border-radius: .5rem; }
.response { margin: 1rem 0; } .tokens td { font-family: ui-monospace, monospace; padding: .1rem .45rem; }
.tokens th { font-weight: normal; padding-right: 1rem; } code { font-family: ui-monospace, monospace; }
"""


def render_report(
    rows: Mapping[str, Mapping[str, float]],
    allocation: Mapping[str, Mapping[str, Any]],
    figures: Sequence[Path],
    run: Path,
    prompts: Mapping[str, str],
    scale: Scale,
    seconds: float,
) -> str:
    trust, uniform = rows["trust"]["recovery"], rows["uniform"]["recovery"]
    mixed = [needs for needs in allocation if "+" in needs]
    relevant = sum(allocation[needs]["relevant_mass"] for needs in mixed) / max(1, len(mixed))
    summary = (
        f"With trust the student recovered <b>{trust:.0%}</b> of the gap between where it started and its three "
        f"teachers, each asked in its own domain; with uniform weights <b>{uniform:.0%}</b>. "
        + (
            f"On prompts that need two specialists, those two got {relevant:.0%} of the weight (uniform: 67%), though "
            "no label said which."
            if mixed
            else ""
        )
    )
    pictures = "".join(f"<figure>{_inline(figure)}</figure>" for figure in figures)
    responses = "".join(_response(tokens, prompts) for tokens in _examples(run / "allocation"))
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>trustmopd quickstart</title><style>{_STYLE}</style>
<h1>Three specialists, one student, no labels</h1>
<p>{summary}</p>
{_table(rows)}
{pictures}
<h2>Where trust went, token by token</h2>
<p>Responses of the student at the last steps. Each row is a teacher; the darker, the more it was trusted at that token.
Arithmetic belongs to <i>math</i>, string programs to <i>code</i>, delimiters to <i>if</i>.</p>
{responses}
<h2>What was run</h2>
<p>{scale.steps} steps of {scale.batch_size} prompts on the small world that ships with the package (models of 0.87M
parameters, specialists made by reinforcement learning with verified rewards), C = {scale.num_candidates}, gamma = 7,
learning rate {scale.learning_rate:g}; scores on {scale.evaluation_prompts} evaluation prompts a domain, none of them a
training prompt, one sample at temperature 0.6. It took {seconds:.0f} s. Every baseline and ablation over five seeds:
<code>trustmopd reproduce testbed</code>.</p>
</html>
"""


def _table(rows: Mapping[str, Mapping[str, float]]) -> str:
    head = "".join(f"<th>{column}</th>" for column in ("", *DOMAINS, "overall", "recovered"))
    body = "".join(
        f"<tr><td>{title}</td>"
        + "".join(f"<td>{100 * rows[name][column]:.1f}</td>" for column in (*DOMAINS, "overall"))
        + f"<td>{rows[name]['recovery']:.0%}</td></tr>"
        for name, title in STORY.items()
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _inline(figure: Path) -> str:
    text = figure.read_text(encoding="utf-8")
    return text[text.index("<svg") :]


def _examples(folder: Path, count: int = 6) -> list[dict[str, list[Any]]]:
    """Recent responses, one for each composition of capabilities that was recorded."""
    chosen: dict[tuple[str, ...], dict[str, list[Any]]] = {}
    for file in sorted(folder.glob("step-*.parquet"), reverse=True):
        table = pq.read_table(file)
        for rollout in sorted(set(table["rollout"].to_pylist())):
            tokens = table.filter([row == rollout for row in table["rollout"].to_pylist()]).to_pydict()
            needs = tuple(tokens["capabilities"][0])
            if len(tokens["token_id"]) > 3:
                chosen.setdefault(needs, tokens)
        if len(chosen) >= count:
            break
    return [chosen[needs] for needs in sorted(chosen, key=lambda needs: (-len(needs), needs))]


def _response(tokens: Mapping[str, list[Any]], prompts: Mapping[str, str]) -> str:
    lines = []
    for name in DOMAINS:
        if f"weight_{name}" not in tokens:
            continue
        cells = "".join(
            f'<td style="background: rgb(var(--{name}) / {0.85 * weight:.2f})" title="{name}: {weight:.2f}">'
            f"{html.escape(text) if text.strip() else '␣'}</td>"
            for text, weight in zip(tokens["token_text"], tokens[f"weight_{name}"], strict=True)
        )
        lines.append(f"<tr><th>{name}</th>{cells}</tr>")
    prompt = html.escape(prompts[tokens["prompt_id"][0]])
    needs = " + ".join(tokens["capabilities"][0])
    return f'<div class="response"><code>{prompt}</code> ({needs})<table class="tokens">{"".join(lines)}</table></div>'
