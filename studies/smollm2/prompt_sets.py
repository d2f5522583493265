"""The prompts of the comparison: evaluation sets; SingleCap and MultiCap, built and screened as by `data build`."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.smollm2.domains import Data, evaluation_tasks, training_tasks
from studies.smollm2.mixed import KINDS
from studies.smollm2.settings import Settings
from studies.smollm2.tasks import DOMAINS, SCORED, Task, row_of
from trustmopd.prompts.build import build
from trustmopd.prompts.build_config import DataConfig
from trustmopd.prompts.prompt_card import write_prompt_set
from trustmopd.runs.layout import CARD
from trustmopd.util.files import write_text

SETS = ("singlecap", "multicap")
#: One of each domain. Of SVAMP, the problems held out.
PUBLIC = ("svamp", "mbpp", "ifeval")
_PROMPT_COLUMNS = {"mbpp": "text", "ifeval": "prompt"}
_EVALUATED = (*SCORED, *KINDS)
_LICENCES = {
    "math": "SVAMP, MIT; the rest is made by trustmopd, Apache-2.0",
    "math+if": "SVAMP, MIT; the rest is made by trustmopd, Apache-2.0",
}


def evaluation_file(out: Path, kind: str) -> Path:
    return out / "prompts" / "evaluation" / f"{kind.replace('+', '-')}.jsonl"


def write_evaluation_sets(out: Path, settings: Settings, data: Data) -> None:
    """Those of one domain have as many prompts as `scoring.prompts`; those of two, a third of it each."""
    for kind in _EVALUATED:
        count = -(-settings.scoring.prompts // 3) if kind in KINDS else settings.scoring.prompts
        _write(evaluation_file(out, kind), evaluation_tasks(kind, settings.scoring.prompts, data)[:count])


def write_prompt_sets(out: Path, settings: Settings, data: Data) -> None:
    """What is there already stays."""
    how = settings.prompts
    counts = {
        "singlecap": dict.fromkeys(DOMAINS, how.singlecap),
        "multicap": dict.fromkeys(DOMAINS, how.multicap_single) | dict.fromkeys(KINDS, how.multicap_mixed),
    }
    if all((out / "prompts" / name / CARD).is_file() for name in SETS):
        return
    print(f"Making the prompts: {out / 'prompts'}", flush=True)
    write_evaluation_sets(out, settings, data)
    for kind in (*DOMAINS, *KINDS):
        most = max(wanted.get(kind, 0) for wanted in counts.values())
        tasks = training_tasks(kind, round(how.pool * most), settings.base, data, settings.seed)
        _write(_pool_file(out, kind), tasks)
    for name, wanted in counts.items():
        write_prompt_set(build(_config(name, wanted, out, settings.seed, data)), overwrite=True)


def _config(name: str, counts: Mapping[str, int], out: Path, seed: int, data: Data) -> DataConfig:
    compared: dict[str, Any] = {kind: {"path": str(evaluation_file(out, kind))} for kind in _EVALUATED}
    compared |= {
        public: {"path": data[public], "columns": {"prompt": column}}
        for public, column in _PROMPT_COLUMNS.items()
        if public in data
    }
    pools = {
        kind: {
            "path": str(_pool_file(out, kind)),
            "licence": _LICENCES.get(kind, "made by trustmopd, Apache-2.0"),
            "columns": {"id": "id"},
        }
        for kind in counts
    }
    categories = {
        kind: {"pool": kind, "count": count, "capabilities": kind.split("+")} for kind, count in counts.items()
    }
    return DataConfig.model_validate(
        {
            "name": name,
            "output": out / "prompts" / name,
            "seed": seed,
            "pools": pools,
            "categories": categories,
            "comparison": compared,
            "decontamination": {"within": False},  # problems with other numbers are alike on purpose
        }
    )


def _pool_file(out: Path, kind: str) -> Path:
    return out / "prompts" / "pools" / f"{kind.replace('+', '-')}.jsonl"


def _write(path: Path, tasks: Sequence[Task]) -> None:
    """A function that is asked twice, with other examples, gets its place after its name."""
    names = Counter(task.id for task in tasks)
    rows = [row_of(task) for task in tasks]
    for place, row in enumerate(rows):
        row["id"] += f"#{place}" if names[row["id"]] > 1 else ""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
