"""What two processes hear when they would not agree, written down by each."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from accelerate import PartialState

from trustmopd.training.run.across_ranks import all_succeed, check_same, first_decides


def heard(action: Callable[[], Any]) -> list[Any]:
    try:
        return ["answer", action()]
    except ValueError as error:
        return ["error", str(error)]


def only(failing: int, answer: str) -> Callable[[], str]:
    def act() -> str:
        if dist.get_rank() == failing:
            raise ValueError("no such folder")
        return answer

    return act


if __name__ == "__main__":
    rank = PartialState(cpu=True).process_index
    found = {
        "first decides": heard(lambda: first_decides(lambda: f"rank {rank}")),
        "first fails": heard(lambda: first_decides(only(0, "never"))),
        "all succeed": heard(lambda: all_succeed(lambda: rank, "Copy it.")),
        "second fails": heard(lambda: all_succeed(only(1, "fine"), "Copy it.")),
        "same": heard(lambda: check_same({"teacher 'math'": "aa", "the student": "bb"})),
        "different": heard(lambda: check_same({"the student": "bb", "teacher 'math'": f"a{rank}"})),
    }
    Path(sys.argv[1], f"heard-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
