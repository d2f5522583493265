"""Checkpoints that lack some of their model's weights, in whose place transformers would put random numbers."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging


class MissingWeights(ValueError):
    """Some of a model's weights are not in its files."""


def load_complete(source: Any, *, by: Any = AutoModelForCausalLM, **options: Any) -> Any:
    """A model by the `from_pretrained` of a class, with all its weights from the files."""
    model, report = by.from_pretrained(source, output_loading_info=True, **options)
    if missing := _untied(model, set(report["missing_keys"])):
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise MissingWeights(f"it has no weights for {', '.join(missing[:3])}{more}, which would be random")
    return model


def _untied(model: nn.Module, missing: set[str]) -> list[str]:
    """Without those that are other names of weights which are there: a model's own code may tie them."""
    named = dict(model.named_parameters(remove_duplicate=False)) if missing else {}
    there = {id(weight) for name, weight in named.items() if name not in missing}
    return sorted(name for name in missing if name not in named or id(named[name]) not in there)


@contextmanager
def silent() -> Iterator[None]:
    """No line and no bar of transformers, whose switch for bars is the Hub's too."""
    level, bars, hub = logging.get_verbosity(), logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the Hub's, if the environment decides on its bars
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()
            (enable_progress_bars if hub else disable_progress_bars)()
