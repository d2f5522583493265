"""What a trainer is built from is checked first: a refusal names the value and its remedy, and writes nothing. What
concerns one part alone is tested there: settings, teachers, the models' files, prompts."""

import copy
from importlib.util import find_spec

import pytest
import tiny
from datasets import Dataset

from trustmopd import TrustMOPDConfig, TrustMOPDTrainer


@pytest.fixture
def refuse(build, files_under, tmp_path):
    """Building this trainer is refused in a message with all of these facts, and nothing is written."""

    def check(*facts, **parts):
        with pytest.raises(ValueError) as refusal:
            build(**parts)
        assert [fact for fact in facts if fact not in str(refusal.value)] == [], refusal.value
        assert files_under(tmp_path / "run") == []

    return check


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"allocation": "single", "single_teacher": "law"}, ("single_teacher = 'law'", "math, code, if")),
        ({"global_batch_size": 32}, ("24", "global_batch_size = 32")),
        ({"num_candidates": tiny.VOCAB + 1}, (f"num_candidates = {tiny.VOCAB + 1}", str(tiny.VOCAB))),
        ({"report_to": "wandbb"}, ("report_to = 'wandbb'", "tensorboard")),
        ({"optim": "adamw_torch", "adam_beta1": 1.5}, ("adam_beta1", "1.5")),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, ("lr_scheduler_kwargs = None",)),
        *(
            ({name: value}, (name, package))
            for name, value, package in (
                ("report_to", "wandb", "wandb"),
                ("rollouts", "vllm", "vllm"),
                ("use_liger_kernel", True, "liger-kernel"),
                ("optim", "adamw_8bit", "bitsandbytes"),
            )
            if find_spec(package.replace("-", "_")) is None
        ),
    ],
    ids=str,
)
def test_a_setting_that_the_machine_or_the_pool_cannot_have_is_refused(refuse, settings, facts):
    refuse(*facts, **settings)


# ---- Prompts and labels


def test_prompts_are_checked_before_models_are_loaded(refuse, family):
    refuse("no column 'prompt'", "Rename", prompts=family.prompts.rename_column("prompt", "question"))
    refuse("no column 'prompt'", "Rename", eval_prompts=family.prompts.rename_column("prompt", "question"))
    refuse("IterableDataset", "Dataset.from_list", prompts=family.prompts.to_iterable_dataset())


def test_conversations_for_a_tokenizer_without_a_template_are_refused(refuse, build):
    bare = tiny.tokenizer(template=None)
    refuse("chat template", tokenizer=bare, allow_template_mismatch=True)
    build(tokenizer=bare, prompts=Dataset.from_dict({"prompt": ["1+1="] * 4}), allow_template_mismatch=True)


def test_routing_without_labels_is_refused(refuse, family):
    unlabelled = family.prompts.remove_columns("domain")
    refuse("no column 'domain'", "domain_column", "allocation = 'trust'", prompts=unlabelled, allocation="routed")
    refuse("no column 'domain'", "domain_column", eval_prompts=unlabelled, allocation="routed")
    refuse("no column None", "domain_column", allocation="routed", domain_column=None)
    rows = family.prompts.to_list()
    rows[5]["domain"] = None
    facts = ("1 of 24 prompts", "None", "row 5", "math, code, if", "Relabel or drop")
    refuse(*facts, prompts=Dataset.from_list(rows), allocation="routed")


@pytest.mark.parametrize("label", ["law", 7])
def test_labels_that_only_ride_along_may_be_anything(build, family, label, tmp_path):
    prompts = family.prompts.remove_columns("domain").add_column("domain", [label] * len(family.prompts))
    build(prompts=prompts, allocation="uniform", record_allocation_every=1, max_steps=1).train()
    assert (tmp_path / "run" / "allocation" / "step-000001.parquet").is_file()


@pytest.mark.parametrize(
    ("told", "settings"),
    [
        ("enable_thinkin", {"chat_template_kwargs": {"enable_thinkin": False}}),
        ("chat template", {"prompts": Dataset.from_dict({"prompt": ["1 + 1 ="] * 8})}),
        ("assistant turn", {"prompts": Dataset.from_dict({"prompt": [[{"role": "assistant", "content": "2"}]] * 8})}),
        ("67 times", {"max_steps": 400}),
    ],
)
def test_what_is_allowed_and_often_a_mistake_is_told(build, told, settings):
    with pytest.warns(UserWarning, match=told):
        build(**settings)


# ---- Models that are in memory


def test_a_teacher_with_the_weights_of_the_reference_is_refused_where_the_rule_scores_it(refuse, build, family):
    pool = {**family.specialists, "code": copy.deepcopy(family.base)}
    refuse("teacher 'code'", "the reference", "teachers.code=null", teachers=pool)
    assert build(teachers=pool, allocation="uniform").pool.teachers == list(pool)


def test_one_model_under_two_names_is_refused_by_every_rule(refuse, family):
    pool = {**family.specialists, "law": copy.deepcopy(family.specialists["math"])}
    refuse("'math'", "'law'", teachers=pool)
    refuse("'math'", "'law'", teachers=pool, allocation="uniform")


def test_a_frozen_student_is_refused(refuse, family):
    refuse("requires_grad", model=copy.deepcopy(family.base).requires_grad_(False))


def test_a_student_that_does_not_exist_is_named_when_its_tokenizer_would_be_read_from_it(family, tmp_path):
    with pytest.raises(ValueError, match=r"the student.*nowhere"):
        TrustMOPDTrainer(
            model=str(tmp_path / "nowhere"),
            teachers=family.specialists,
            args=TrustMOPDConfig(output_dir=str(tmp_path / "run"), use_cpu=True, global_batch_size=8),
            train_dataset=family.prompts,
        )
    assert not (tmp_path / "run").exists()
