"""What a recipe may name, and where it is: engines that evaluate, and benchmarks. Nothing is imported to check a name.

A benchmark of your own needs no row here. A recipe names its place: a file of rows, or the list `BENCHMARKS` of a
Python file or module, as `mine.py:NAME` or `my.package:NAME`.
"""

from collections.abc import Mapping

from trustmopd.util.messages import choose_from

#: What samples responses to score: a file `rollouts/<name>_engine.py` each.
ENGINES = ("transformers", "vllm")
#: How an answer is looked for in a response: a function each in `evaluation/graders/answers.py`.
GRADERS = ("exact", "contains", "regex", "choice", "number", "math")
#: Files of rows that can be read.
SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".csv", ".csv.gz", ".parquet")
_FILES: Mapping[str, tuple[str, ...]] = {
    "trustmopd.evaluation.benchmarks.functions": ("mbpp", "humaneval"),
    "trustmopd.evaluation.benchmarks.ifbench": ("ifbench",),
    "trustmopd.evaluation.benchmarks.ifeval": ("ifeval",),
    "trustmopd.evaluation.benchmarks.livecodebench": ("lcb_v5", "lcb_v6", "lcb_release_v5", "lcb_release_v6"),
    "trustmopd.evaluation.benchmarks.mathematics": ("aime25", "aime26", "gsm8k", "svamp"),
    "trustmopd.quickstart.benchmarks": (
        *("testbed_math", "testbed_code", "testbed_if"),
        *("testbed_math_code", "testbed_math_if", "testbed_code_if"),
    ),
}
#: The module that has each benchmark in its list `BENCHMARKS`.
BENCHMARKS = {name: module for module, names in _FILES.items() for name in names}


def check_engine_name(name: str) -> str:
    if name not in ENGINES:
        raise ValueError(f"there is no engine {name!r}. {choose_from(ENGINES, name)}.")
    return name


def check_grader_name(name: str) -> str:
    place, _, function = name.rpartition(":")
    if name in GRADERS or (place and function):
        return name
    raise ValueError(f"there is no grader {name!r}. {choose_from(GRADERS, name)}, or give your own: FILE.py:FUNCTION.")


def check_benchmark_name(name: str) -> str:
    place, _, own = name.rpartition(":")
    if name in BENCHMARKS or name.endswith(SUFFIXES) or (place and own):
        return name
    raise ValueError(
        f"there is no benchmark {name!r}. {choose_from(BENCHMARKS, name)}, or give your own: a file of rows "
        f"({', '.join(SUFFIXES)}), or FILE.py:NAME."
    )
