"""The prompts of the comparison: evaluation sets, and SingleCap and MultiCap, built as by `trustmopd data build`."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from studies.smollm2.domains import Data, evaluation_tasks, training_tasks
from studies.smollm2.mixed import KINDS
from studies.smollm2.settings import EVALUATED, SEED, Base
from studies.smollm2.tasks import DOMAINS, Task, row_of
from trustmopd.prompts.build import build
from trustmopd.prompts.build_config import DataConfig, load_config
from trustmopd.prompts.prompt_card import write_prompt_set
from trustmopd.runs.layout import CARD
from trustmopd.util.files import write_text

SETS = ("singlecap", "multicap")
#: Where the YAML files of the study, and its recipes, have everything.
FOLDER = "runs/smollm2"
#: As many times the prompts of a set are made, because some repeat an evaluation prompt.
_SPARE = 1.6
_PUBLIC = ("mbpp", "ifeval")


def evaluation_file(out: Path, kind: str) -> Path:
    return out / "prompts" / "evaluation" / f"{kind.replace('+', '-')}.jsonl"


def write_prompts(
    out: Path, data: Data, evaluated: int = EVALUATED, changes: Mapping[str, Sequence[str]] | None = None
) -> None:
    """What is there already stays. `evaluated`: held-out prompts of each domain, and three times those of each pair.
    `changes`: of the config of a set, as on a command line."""
    configs = [_config(name, out, data, (changes or {}).get(name, ())) for name in SETS]
    if all((config.output / CARD).is_file() for config in configs):
        return
    for kind in (*DOMAINS, "svamp", *KINDS):
        count = -(-evaluated // 3) if kind in KINDS else evaluated
        _write(evaluation_file(out, kind), evaluation_tasks(kind, evaluated, data)[:count])
    for kind in (*DOMAINS, *KINDS):
        most = max(config.categories[kind].count for config in configs if kind in config.categories)
        tasks = training_tasks(kind, round(_SPARE * most), Base(), data, SEED)
        _write(out / "prompts" / "pools" / f"{kind.replace('+', '-')}.jsonl", tasks)
    for config in configs:
        write_prompt_set(build(config), overwrite=True)


def _config(name: str, out: Path, data: Data, changes: Sequence[str]) -> DataConfig:
    """With its files below `out`. Public benchmarks are compared where their data are named."""
    public = [f"comparison.{name}.path={data[name]}" if name in data else f"comparison.{name}=null" for name in _PUBLIC]
    config = load_config(Path(__file__).with_name(f"{name}.yaml"), [*public, *changes])
    return DataConfig.model_validate_json(config.model_dump_json().replace(f"{FOLDER}/", f"{out.as_posix()}/"))


def _write(path: Path, tasks: Sequence[Task]) -> None:
    """A function that is asked twice, with other examples, gets its place after its name."""
    names = Counter(task.id for task in tasks)
    rows = [row_of(task) for task in tasks]
    for number, row in enumerate(rows):
        row["id"] += f"#{number}" if names[row["id"]] > 1 else ""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
