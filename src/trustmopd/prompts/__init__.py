"""Prompt sets: how they are built and screened, read and checked."""

from trustmopd.prompts.decontaminate import Removal, Screening, decontaminate
from trustmopd.prompts.prompt_set import check_labels, check_prompts, load_prompts, of_one_kind, prompt_hash

__all__ = [
    "Removal",
    "Screening",
    "check_labels",
    "check_prompts",
    "decontaminate",
    "load_prompts",
    "of_one_kind",
    "prompt_hash",
]
