"""Prompt sets: reading them, checking them, naming them."""

from trustmopd.data.prompts import check_labels, check_prompts, load_prompts, prompt_hash

__all__ = ["check_labels", "check_prompts", "load_prompts", "prompt_hash"]
