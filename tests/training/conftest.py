"""One small family for the tests of this folder: a base, three specialists of it, their tokenizer and their prompts."""

import copy
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import small_runs
import tiny

from trustmopd import TrustMOPDConfig, TrustMOPDTrainer

NAMES = ("math", "code", "if")
SETTINGS = {
    "num_candidates": 16,
    "max_completion_length": 6,
    "global_batch_size": 4,
    "per_device_train_batch_size": 2,
    "calibration_batches": 2,
    "max_steps": 2,
    "learning_rate": 1e-3,
    "save_steps": 1000,
    "record_allocation_every": 0,
    "report_to": "none",
    "use_cpu": True,
    "disable_tqdm": True,
}


@pytest.fixture(scope="session")
def family():
    """Nobody changes these; a test that must, copies them."""
    base = tiny.model(0)
    specialists = {name: tiny.specialist(base, seed) for seed, name in enumerate(NAMES, start=1)}
    return SimpleNamespace(base=base, specialists=specialists, tokenizer=tiny.tokenizer(), prompts=tiny.prompts(24))


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """The same family as folders on disk."""
    return small_runs.checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def make(family):
    """A trainer like any other but for what is named: parts of it by name, the rest are settings."""

    def trainer(
        output_dir,
        *,
        model=None,
        teachers=None,
        prompts=None,
        eval_prompts=None,
        tokenizer=None,
        reference=None,
        peft_config=None,
        callbacks=None,
        **settings,
    ):
        return TrustMOPDTrainer(
            model=copy.deepcopy(family.base) if model is None else model,
            teachers=family.specialists if teachers is None else teachers,
            reference=reference,
            args=TrustMOPDConfig(output_dir=str(output_dir), **{**SETTINGS, **settings}),
            train_dataset=family.prompts if prompts is None else prompts,
            eval_dataset=eval_prompts,
            processing_class=family.tokenizer if tokenizer is None else tokenizer,
            peft_config=peft_config,
            callbacks=callbacks,
        )

    return trainer


@pytest.fixture
def build(make, tmp_path):
    """`make` in this test's own folder, `tmp_path / "run"`."""
    return partial(make, tmp_path / "run")


@pytest.fixture
def steps_of():
    return small_runs.steps_of


@pytest.fixture
def files_under():
    def names(folder):
        return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())

    return names
