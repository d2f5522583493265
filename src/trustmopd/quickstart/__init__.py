"""The small world that ships with the package: tasks, verifiers, prompt sets, and checkpoints with how they were made.

Start with `tasks.py`. `experiment.py` and `quickstart.py` need torch and are imported by name.
"""

from trustmopd.quickstart.prompts import evaluation_set, prompt_set, prompt_split
from trustmopd.quickstart.tasks import DOMAINS, MIXTURES, Task, Verdict, parse, verify

__all__ = [
    "DOMAINS",
    "MIXTURES",
    "Task",
    "Verdict",
    "evaluation_set",
    "parse",
    "prompt_set",
    "prompt_split",
    "verify",
]
