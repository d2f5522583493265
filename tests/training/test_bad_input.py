"""What is wrong is said before training, by name and with a remedy, and leaves nothing behind. What goes wrong later
stops the run."""

import copy
import json
import logging
import shutil
from pathlib import Path

import pytest
import tiny
import torch
from datasets import Dataset
from tokenizers import pre_tokenizers
from transformers import TrainerCallback
from trl import DistillationTrainer

from trustmopd import Calibration, Teacher, TrustMOPDConfig, TrustMOPDTrainer
from trustmopd.rollouts import Completion
from trustmopd.rollouts.transformers_engine import TransformersEngine

OTHER_TEMPLATE = tiny.TEMPLATE.replace("assistant:", "answer:")


@pytest.fixture
def refuse(build, files_under, tmp_path):
    """Building this trainer is refused in a message with all of these words, and nothing is written."""

    def check(*words, error=ValueError, **parts):
        with pytest.raises(error) as refusal:
            build(**parts)
        message = str(refusal.value)
        assert [word for word in words if word not in message] == [], message
        assert files_under(tmp_path / "run") == []

    return check


def messages(text):
    return [{"role": "user", "content": text}]


# ---- Models that do not fit


def test_a_teacher_with_other_tokens_under_the_same_ids_is_refused(refuse, family, tmp_path):
    shuffled = tiny.tokenizer(characters=tiny.CHARACTERS[::-1])
    stranger = tiny.save(family.specialists["code"], tmp_path / "stranger", shuffled)
    refuse(
        "teacher 'code'", stranger, "vocabulary", repr(tiny.CHARACTERS[0]),
        teachers={**family.specialists, "code": stranger}, allow_template_mismatch=True,
    )  # fmt: skip


def test_a_teacher_with_fewer_vocabulary_rows_than_the_tokenizer_has_tokens_is_refused(refuse, family):
    narrow = tiny.model(1, vocab=tiny.VOCAB - 3)
    refuse(
        "teacher 'math'", str(tiny.VOCAB - 3), str(tiny.VOCAB),
        teachers={**family.specialists, "math": narrow},
    )  # fmt: skip


def test_a_reference_with_fewer_vocabulary_rows_is_refused(refuse):
    refuse("the reference", str(tiny.VOCAB - 3), reference=tiny.model(1, vocab=tiny.VOCAB - 3))


def test_padded_vocabulary_rows_of_a_teacher_change_nothing(make, family, tmp_path, steps_of):
    padded = tiny.model(9, vocab=tiny.VOCAB + 28)
    weights = family.specialists["math"].state_dict()
    with torch.no_grad():
        for name, parameter in padded.state_dict().items():
            parameter[: len(weights[name])] = weights[name]
    losses = []
    for run, teacher in (("plain", family.specialists["math"]), ("padded", padded)):
        trainer = make(tmp_path / run, teachers={**family.specialists, "math": teacher}, max_steps=1)
        assert trainer.identity.vocab_size == tiny.VOCAB
        trainer.train()
        losses.append(steps_of(tmp_path / run)[0]["loss"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_a_teacher_that_splits_text_differently_is_refused(refuse, family, tmp_path):
    splitter = tiny.tokenizer()
    splitter.backend_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    stranger = tiny.save(family.specialists["if"], tmp_path / "stranger", splitter)
    refuse(
        "teacher 'if'", stranger,
        teachers={**family.specialists, "if": stranger},
    )  # fmt: skip


def other_eos(model):
    model = copy.deepcopy(model)
    model.config.eos_token_id = model.generation_config.eos_token_id = 7
    return model


def test_a_teacher_that_ends_responses_otherwise_is_refused(refuse, family, tmp_path):
    stranger = tiny.save(other_eos(family.specialists["if"]), tmp_path / "stranger")
    refuse("teacher 'if'", "[2, 7]", "[2]", "allow_template_mismatch", teachers={**family.specialists, "if": stranger})


def test_a_loaded_teacher_that_ends_responses_otherwise_is_refused_as_one_on_disk_is(refuse, family):
    stranger = other_eos(family.specialists["if"])
    refuse("teacher 'if'", "7", "[2]", "allow_template_mismatch", teachers={**family.specialists, "if": stranger})


def test_a_teacher_with_another_chat_template_is_refused(refuse, family, tmp_path):
    stranger = tiny.save(family.specialists["math"], tmp_path / "stranger", tiny.tokenizer(OTHER_TEMPLATE))
    refuse(
        "teacher 'math'", stranger, "allow_template_mismatch=True", "answer:", "assistant:",
        "training.allow_template_mismatch=true", teachers={**family.specialists, "math": stranger},
    )  # fmt: skip


def test_conversations_for_a_tokenizer_without_a_template_are_refused(refuse, build):
    bare = tiny.tokenizer(template=None)
    refuse("chat template", tokenizer=bare, allow_template_mismatch=True)
    build(tokenizer=bare, prompts=Dataset.from_dict({"prompt": ["1+1="] * 4}), allow_template_mismatch=True)


@pytest.mark.parametrize("part", ["model", "teacher", "adapter"])
def test_a_slip_in_a_path_is_not_looked_for_on_the_hub(refuse, family, tmp_path, monkeypatch, part):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("somebody asked the network"))
    wrong = {
        "model": {"model": "./models/bse"},
        "teacher": {"teachers": {"math": "models/own/mth"}},
        "adapter": {"teachers": {"math": Teacher(adapter="./mth")}},
    }[part]
    path = {"model": "./models/bse", "teacher": "models/own/mth", "adapter": "./mth"}[part]
    refuse(path, "the student" if part == "model" else "teacher 'math'", **wrong)


def test_template_and_eos_differences_that_were_allowed_are_only_warned_of(build, family, tmp_path):
    stranger = tiny.save(other_eos(family.specialists["math"]), tmp_path / "stranger", tiny.tokenizer(OTHER_TEMPLATE))
    with pytest.warns(UserWarning) as caught:
        build(teachers={**family.specialists, "math": stranger}, allow_template_mismatch=True)
    said = " ".join(str(warning.message) for warning in caught)
    assert "teacher 'math'" in said and "answer:" in said and "[2, 7]" in said


def test_more_candidates_than_tokens_are_refused(refuse):
    refuse(f"num_candidates = {tiny.VOCAB + 1}", str(tiny.VOCAB), num_candidates=tiny.VOCAB + 1)


# ---- Checkpoints cut short


def half(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def test_a_teacher_whose_file_was_cut_short_is_refused(refuse, family, checkpoints, tmp_path):
    copied = Path(shutil.copytree(checkpoints["code"], tmp_path / "copied"))
    half(copied / "model.safetensors")
    refuse(
        "teacher 'code'", str(copied / "model.safetensors"),
        teachers={**family.specialists, "code": str(copied)},
    )  # fmt: skip


def test_a_student_whose_file_was_cut_short_is_refused(refuse, checkpoints, tmp_path):
    copied = Path(shutil.copytree(checkpoints["base"], tmp_path / "copied"))
    half(copied / "model.safetensors")
    refuse("the student", str(copied / "model.safetensors"), model=str(copied))


def test_an_adapter_whose_file_was_cut_short_is_refused(refuse, family, tmp_path):
    folder = tiny.adapter(family.base, tmp_path / "adapter", seed=1)
    half(folder / "adapter_model.safetensors")
    refuse(
        "teacher 'math'", str(folder / "adapter_model.safetensors"),
        teachers={**family.specialists, "math": Teacher(adapter=folder)},
    )  # fmt: skip


@pytest.mark.parametrize("who", ["the student", "teacher 'if'", "the reference"])
def test_a_missing_shard_is_named(refuse, family, tmp_path, who):
    sharded = tmp_path / "sharded"
    family.base.save_pretrained(sharded, max_shard_size="20KB")
    family.tokenizer.save_pretrained(sharded)
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()
    parts = {
        "the student": {"model": str(sharded)},
        "teacher 'if'": {"teachers": {**family.specialists, "if": str(sharded)}},
        "the reference": {"reference": str(sharded)},
    }
    refuse(who, shard.name, **parts[who])


def test_a_path_that_does_not_exist_is_named(refuse, family, tmp_path):
    missing = str(tmp_path / "nowhere")
    refuse("teacher 'math'", missing, teachers={**family.specialists, "math": missing})
    refuse("teacher 'math'", missing, teachers={**family.specialists, "math": Teacher(adapter=missing)})
    refuse("the student", missing, model=missing)


def test_a_student_that_does_not_exist_is_named_when_its_tokenizer_would_be_read_from_it(family, tmp_path):
    missing = str(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"the student.*nowhere"):
        TrustMOPDTrainer(
            model=missing,
            teachers=family.specialists,
            args=TrustMOPDConfig(output_dir=str(tmp_path / "run"), use_cpu=True, global_batch_size=8),
            train_dataset=family.prompts,
        )
    assert not (tmp_path / "run").exists()


# ---- The pool


@pytest.mark.parametrize("teachers", [{}, ["math"], "math"])
def test_a_pool_of_nobody_is_refused(refuse, teachers):
    refuse(f"teachers = {teachers!r}", teachers=teachers)


@pytest.mark.parametrize("name", ["", "a/b", "two words", "reference", 1])
def test_a_name_that_cannot_be_a_column_is_refused(refuse, family, name):
    refuse(repr(name), teachers={name: family.specialists["math"]})


def test_a_teacher_of_nothing_is_refused(refuse):
    refuse("teacher 'code'", "`model`", "`adapter`", teachers={"code": Teacher()})


def test_a_reference_that_is_only_an_adapter_is_refused(refuse, family, tmp_path):
    folder = tiny.adapter(family.base, tmp_path / "adapter", seed=1)
    refuse("the reference", str(folder), reference=Teacher(adapter=folder))


# ---- Settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"allocation": "trsut"}, ("allocation = 'trsut'", "uniform")),
        ({"score": "vibes"}, ("score = 'vibes'", "displacement")),
        ({"granularity": "word"}, ("granularity = 'word'", "token, response")),
        ({"teacher_placement": "moon"}, ("teacher_placement = 'moon'", "resident, offload")),
        ({"prompt_truncation": "middle"}, ("prompt_truncation = 'middle'", "left, right, drop, error")),
        ({"teacher_dtype": "float12"}, ("teacher_dtype = 'float12'", "'bfloat16'")),
        ({"gamma": 0.0}, ("gamma = 0.0", "uniform")),
        ({"gamma": -7.0}, ("gamma = -7.0",)),
        ({"gamma": float("nan")}, ("gamma = nan",)),
        ({"gamma": float("inf")}, ("gamma = inf",)),
        ({"num_candidates": 0}, ("num_candidates = 0", "1")),
        ({"calibration_batches": 0}, ("calibration_batches = 0", "1")),
        ({"global_batch_size": 0}, ("global_batch_size = 0", "1")),
        ({"max_prompt_length": 0}, ("max_prompt_length = 0", "None")),
        ({"distillation_temperature": 0.0}, ("distillation_temperature = 0.0",)),
        ({"distillation_temperature": float("nan")}, ("distillation_temperature = nan",)),
        ({"beta": 0.5}, ("beta = 0.5", "DistillationTrainer")),
        ({"teacher_model_name_or_path": "hub/id"}, ("teacher_model_name_or_path = 'hub/id'", "teachers={")),
        ({"teacher_model_revision": "main"}, ("teacher_model_revision = 'main'", "Teacher(...)")),
        ({"teacher_model_init_kwargs": {"a": 1}}, ("teacher_model_init_kwargs = {'a': 1}", "Teacher(...)")),
        ({"remove_unused_columns": True}, ("remove_unused_columns = True", "domain")),
        ({"allocation": "single"}, ("single_teacher",)),
        (
            {"allocation": "single", "single_teacher": "law"},
            ("single_teacher = 'law'", "math, code, if"),
        ),
        (
            {"global_batch_size": 6, "per_device_train_batch_size": 4},
            ("global_batch_size = 6", "4 × 1"),
        ),
        ({"global_batch_size": 32}, ("24", "global_batch_size = 32")),
    ],
    ids=str,
)
def test_a_setting_that_makes_no_sense_is_refused(refuse, settings, words):
    refuse(*words, **settings)


# ---- Labels


def test_routing_without_labels_is_refused(refuse, family):
    unlabelled = family.prompts.remove_columns("domain")
    refuse("no column 'domain'", "domain_column", "allocation = 'trust'", prompts=unlabelled, allocation="routed")
    refuse("no column None", "domain_column", allocation="routed", domain_column=None)


@pytest.mark.parametrize("label", ["law", None])
def test_a_label_that_names_no_teacher_is_refused(refuse, family, label):
    rows = family.prompts.to_list()
    rows[5]["domain"] = label
    refuse(
        "1 of 24 prompts", repr(label), "row 5", "math, code, if", "Relabel or drop",
        prompts=Dataset.from_list(rows), allocation="routed",
    )  # fmt: skip


def test_an_evaluation_set_is_checked_as_the_training_set_is(refuse, family):
    unlabelled = family.prompts.remove_columns("domain")
    refuse("no column 'domain'", "domain_column", eval_prompts=unlabelled, allocation="routed")
    refuse("no column 'prompt'", "Rename", eval_prompts=family.prompts.rename_column("prompt", "question"))


@pytest.mark.parametrize("domain", ["a name", "a class"])
def test_labels_that_only_ride_along_may_be_anything(build, family, domain, tmp_path):
    labels = ["law" if domain == "a name" else 7] * len(family.prompts)
    prompts = family.prompts.remove_columns("domain").add_column("domain", labels)
    build(prompts=prompts, allocation="uniform", record_allocation_every=1, max_steps=1).train()
    assert (tmp_path / "run" / "allocation" / "step-000001.parquet").is_file()


# ---- Prompts


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        (Dataset.from_dict({"prompt": []}), ("prompt set is empty", "Check its path")),
        (Dataset.from_dict({"question": ["a"] * 8}), ("no column 'prompt'", "question", "Rename")),
        (Dataset.from_dict({"prompt": ["a", None] * 4}), ("row 1", "None", "non-empty text")),
        (Dataset.from_dict({"prompt": [7] * 8}), ("row 0", "'7'", "non-empty text")),
        (Dataset.from_dict({"prompt": ["a", " \n"] * 4}), ("row 1", "blank", "non-empty text")),
        (Dataset.from_dict({"prompt": [messages("a"), []] * 4}), ("row 1", "'[]'", "list of messages")),
        (Dataset.from_dict({"prompt": [messages("a"), messages("")] * 4}), ("row 1", "'content'")),
        (Dataset.from_dict({"prompt": [messages("a"), messages(" ")] * 4}), ("row 1", "list of messages")),
        (Dataset.from_dict({"prompt": [[{"content": "a"}]] * 8}), ("row 0", "'role'")),
        (Dataset.from_dict({"prompt": [[{"role": "user"}]] * 8}), ("row 0", "'content'")),
    ],
    ids=[
        "empty",
        "no column",
        "none",
        "number",
        "blank",
        "no messages",
        "no text",
        "blank text",
        "no role",
        "no content",
    ],
)
def test_a_prompt_set_that_cannot_be_rendered_is_refused(refuse, prompts, words):
    refuse(*words, prompts=prompts)


def test_a_stream_of_prompts_is_refused_with_the_way_to_make_a_set_of_it(refuse, family):
    refuse("IterableDataset", "Dataset.from_list", prompts=family.prompts.to_iterable_dataset())


@pytest.fixture
def long_prompts(family):
    """24 prompts of which rows 3 and 11 are over 40 tokens."""
    rows = family.prompts.to_list()
    rows[3]["prompt"] = messages("START" + "x" * 60 + "END")
    rows[11]["prompt"] = messages("START" + "y" * 30 + "END")
    return Dataset.from_list(rows)


@pytest.mark.parametrize(("truncation", "kept"), [(None, "END\nassistant: "), ("right", "user: START")])
def test_a_prompt_over_the_limit_is_cut_warned_of_and_counted(build, long_prompts, caplog, truncation, kept, tmp_path):
    settings = {} if truncation is None else {"prompt_truncation": truncation}
    with caplog.at_level(logging.WARNING, logger="trustmopd"):
        trainer = build(prompts=long_prompts, max_prompt_length=40, **settings, max_steps=1)
    told = ("2 of 24", "max_prompt_length = 40", "row 3", truncation or "left")
    assert [fact for fact in told if fact not in caplog.text] == []
    ids, _, _ = trainer._tokenize_prompts(long_prompts["prompt"][:])
    lengths = [len(prompt) for prompt in ids]
    assert max(lengths) == lengths[3] == lengths[11] == 40
    assert lengths[0] < 40
    text = trainer.processing_class.decode(ids[3])
    assert text.endswith(kept) if truncation is None else text.startswith(kept)
    trainer.train()
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["prompts"]["over_max_prompt_length"] == 2


def test_prompts_over_the_limit_are_dropped_where_that_is_asked_for(build, long_prompts, caplog):
    with caplog.at_level(logging.WARNING, logger="trustmopd"):
        trainer = build(prompts=long_prompts, max_prompt_length=40, prompt_truncation="drop")
    assert "2 of 24" in caplog.text and "max_prompt_length = 40" in caplog.text
    assert [row["id"] for row in trainer.train_dataset] == [f"p{row}" for row in range(24) if row not in (3, 11)]
    assert trainer.identity.overlong_prompts == 2


def test_prompts_over_the_limit_are_refused_where_that_is_asked_for(refuse, long_prompts):
    refuse(
        "2 of 24", "max_prompt_length = 40", "row 3", "prompt_truncation",
        prompts=long_prompts, max_prompt_length=40, prompt_truncation="error",
    )  # fmt: skip


def test_without_a_limit_no_prompt_is_cut(build, long_prompts):
    trainer = build(prompts=long_prompts, max_prompt_length=None)
    ids, _, _ = trainer._tokenize_prompts(long_prompts["prompt"][:])
    assert len(ids[3]) > 80
    assert trainer.identity.overlong_prompts == 0


# ---- Calibrations that belong to another run


@pytest.fixture(scope="module")
def calibration_file(make, tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrated")
    make(folder, calibration_batches=1).calibrate()
    return folder / "calibration.json"


@pytest.mark.parametrize(
    ("field", "then", "now"),
    [
        ("num_candidates", 16, 8),
        ("max_completion_length", 6, 5),
        ("score", "displacement", "likelihood"),
        ("temperature", 0.6, 0.7),
        ("distillation_temperature", 1.0, 2.0),
        ("top_p", 1.0, 0.9),
        ("top_k", 0, 5),
    ],
)
def test_a_calibration_made_with_other_settings_is_refused(refuse, calibration_file, field, then, now):
    words = (f"{field} = {then!r}", repr(now), "Calibrate again")
    refuse(*words, calibration_path=str(calibration_file), **{field: now})


def test_a_calibration_of_other_models_or_prompts_is_refused(refuse, calibration_file, family):
    path, math = str(calibration_file), tiny.specialist(family.base, 9)
    others = {
        "teachers.code": {"teachers": {**family.specialists, "code": math}},
        "teachers.law": {"teachers": {**family.specialists, "law": math}},
        "teachers.if": {"teachers": {name: family.specialists[name] for name in ("math", "code")}},
        "reference": {"reference": math},
        "student": {"model": copy.deepcopy(math)},
        "prompts": {"prompts": family.prompts.select(range(1, 24))},
    }
    for field, parts in others.items():
        refuse(f"made with {field} = ", "Calibrate again", calibration_path=path, **parts)


def test_a_calibration_file_that_is_missing_or_cut_short_is_refused(refuse, calibration_file, tmp_path):
    missing, cut = tmp_path / "missing.json", Path(shutil.copy(calibration_file, tmp_path / "cut.json"))
    half(cut)
    refuse(
        str(missing),
        "does not exist",
        "calibrate again",
        error=(ValueError, FileNotFoundError),
        calibration_path=str(missing),
    )
    refuse(str(cut), "cut short", "calibrate again", calibration_path=str(cut))


def test_a_calibration_file_with_a_field_missing_is_refused(refuse, calibration_file, tmp_path):
    payload = json.loads(calibration_file.read_text())
    del payload["mu"]
    (tmp_path / "edited.json").write_text(json.dumps(payload))
    refuse("edited.json has no mu", "calibrate again", calibration_path=str(tmp_path / "edited.json"))


def test_a_teacher_with_the_weights_of_the_reference_is_refused_where_the_rule_scores_it(refuse, build, family):
    pool = {**family.specialists, "code": copy.deepcopy(family.base)}
    refuse("teacher 'code'", "the reference", "teachers.code=null", teachers=pool)
    assert build(teachers=pool, allocation="uniform").pool.teachers == list(pool)


def test_one_model_under_two_names_is_refused_by_every_rule(refuse, family):
    pool = {**family.specialists, "law": copy.deepcopy(family.specialists["math"])}
    refuse("'math'", "'law'", teachers=pool)
    refuse("'math'", "'law'", teachers=pool, allocation="uniform")


def nearly(model):
    """The same policy but for rounding."""
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.model.norm.weight *= 1 + 1e-6
    return copied


@pytest.mark.parametrize("verb", ["calibrate", "train"])
def test_a_teacher_that_is_the_reference_but_for_rounding_is_named_with_both_figures(
    build, family, files_under, tmp_path, verb
):
    pool = {**family.specialists, "code": nearly(family.base)}
    trainer = build(teachers=pool)
    with pytest.raises(ValueError) as refusal:
        getattr(trainer, verb)()
    found = build(teachers=pool, min_relative_mu=0.0).calibrate()
    assert found.mu["code"] < 1e-3 * min(found.mu["math"], found.mu["if"])
    others = (found.mu["math"] + found.mu["if"]) / 2
    for figure in ("'code'", f"{found.mu['code']:.3g}", f"{others:.3g}", "min_relative_mu"):
        assert figure in str(refusal.value)
    assert trainer.calibration is None


def engine_gives(monkeypatch, generate):
    made = lambda self, prompts, params: [Completion(ids, False) for ids in generate(prompts)]  # noqa: E731
    monkeypatch.setattr(TransformersEngine, "sample", made)


@pytest.mark.parametrize("verb", ["calibrate", "train"])
def test_a_student_that_writes_nothing_cannot_be_calibrated_on(build, monkeypatch, files_under, tmp_path, verb):
    engine_gives(monkeypatch, lambda prompts: [[] for _ in prompts])
    with pytest.raises(ValueError, match=r"\b8\b.*calibration"):
        getattr(build(), verb)()
    assert [name for name in files_under(tmp_path / "run") if name != ".lock"] == []


# ---- What goes wrong during training


class Poison(TrainerCallback):
    """After step 2, one weight of a frozen policy is no number any more."""

    def __init__(self, value):
        self.value = value
        self.model = None

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            with torch.no_grad():
                self.model.model.norm.weight[0] = self.value


@pytest.mark.parametrize(
    ("member", "value", "who"),
    [
        ("code", float("nan"), "teacher 'code'"),
        ("if", float("inf"), "teacher 'if'"),
        ("reference", float("nan"), "the reference"),
    ],
)
def test_a_policy_that_turns_to_nan_stops_the_run_and_the_last_checkpoint_goes_on(
    build, family, tmp_path, steps_of, member, value, who
):
    settings = {"max_steps": 4, "save_steps": 1, "calibrated": False}
    poison = Poison(value)
    trainer = build(teachers=copy.deepcopy(family.specialists), callbacks=[poison], **settings)
    poison.model = trainer.pool.members[member].host.model
    with pytest.raises(FloatingPointError, match=rf"{who} .*step 3\b"):
        trainer.train()
    assert [line["step"] for line in steps_of(tmp_path / "run")] == [1, 2]
    build(**settings).train(resume_from_checkpoint=True)
    lines = steps_of(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert all(0 < line["loss"] < 100 for line in lines)


def replayed(monkeypatch, responses):
    """Generation replaced by fixed responses, in the order of the prompts' text."""
    place = lambda ids: tiny.tokenizer().decode(ids)  # noqa: E731

    def generate(prompts):
        order = sorted(place(ids) for ids in prompts)
        return [list(responses[order.index(place(ids))]) for ids in prompts]

    engine_gives(monkeypatch, generate)


def one_step(make, folder, **parts):
    settings = {"calibrated": False, "max_steps": 1, "optim": "sgd", "learning_rate": 0.1, "warmup_steps": 0}
    trainer = make(folder, **{**settings, **parts})
    trainer.train()
    return {name: parameter.detach() for name, parameter in trainer.model.named_parameters()}


RESPONSES = [[20, 30, 2], [40, 41, 42, 43], [50, 2]]


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_an_empty_response_leaves_the_gradient_of_the_others_alone(
    make, family, monkeypatch, steps_of, tmp_path, micro_batch
):
    # p0 … p3 sort in this order: the last is the one without a response.
    rows = family.prompts.select([0, 4, 8, 3])
    replayed(monkeypatch, RESPONSES)
    without = one_step(
        make, tmp_path / "without", prompts=rows.select([0, 1, 2]), global_batch_size=3, per_device_train_batch_size=3
    )
    replayed(monkeypatch, [*RESPONSES, []])
    with_it = one_step(make, tmp_path / "with", prompts=rows, per_device_train_batch_size=micro_batch)
    for name, parameter in with_it.items():
        torch.testing.assert_close(parameter, without[name], rtol=1e-5, atol=1e-6)
    first, second = (steps_of(tmp_path / run)[0] for run in ("without", "with"))
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-5)
    assert first["weight/math"] == pytest.approx(second["weight/math"], rel=1e-5)


def test_a_step_without_any_response_changes_nothing_and_divides_by_nothing(
    make, family, monkeypatch, steps_of, tmp_path
):
    replayed(monkeypatch, [[]] * 4)
    after = one_step(make, tmp_path / "run", prompts=family.prompts.select(range(4)))
    for name, parameter in family.base.named_parameters():
        assert torch.equal(after[name], parameter), name
    assert steps_of(tmp_path / "run")[0]["loss"] == 0


def test_an_empty_last_turn_leaves_the_other_responses_in_place(build, monkeypatch):
    """With tools TRL generates again for the rows that called one, and there a row has another number."""
    turns = []

    def generate(prompts):
        turns.append(len(prompts))
        return [[20, 30, 2] for _ in prompts] if len(turns) == 1 else [[] for _ in prompts]

    whole = DistillationTrainer._generate

    def with_a_second_turn(self, prompts):
        generated = whole(self, prompts)
        self._generate_single_turn(generated[0][1:2], None, {})
        return generated

    engine_gives(monkeypatch, generate)
    monkeypatch.setattr(DistillationTrainer, "_generate", with_a_second_turn)
    trainer = build(calibrated=False)
    batch = trainer._generate_and_score_completions([trainer.train_dataset[row] for row in range(4)])
    assert turns == [4, 1]
    assert batch["completion_mask"].sum(dim=1).tolist() == [3, 3, 3, 3]


def test_where_every_score_is_zero_the_weights_are_uniform_and_the_tokens_counted(build, family, steps_of, tmp_path):
    def none_moved(state):
        return torch.zeros(state.teacher_logp.shape[:-1])

    settings = {"calibrated": False, "max_steps": 1, "max_completion_length": 5, "record_allocation_every": 1}
    build(score=none_moved, **settings).train()
    line = steps_of(tmp_path / "run")[0]
    tokens = 4 * line["completions/mean_length"]
    assert line["candidates/degenerate_tokens"] == tokens > 0
    assert [line[f"weight/{name}"] for name in family.specialists] == pytest.approx([1 / 3] * 3)
    assert line["agreement/effective_teachers"] == pytest.approx(3.0)


def test_a_hand_made_calibration_of_zero_is_refused():
    with pytest.raises(ValueError, match=r"teacher 'math'.*mu = 0"):
        Calibration(mu={"math": 0.0}, depends_on={}, spread={"math": 0.0}, tokens=1, batches=1, global_batch_size=1)
