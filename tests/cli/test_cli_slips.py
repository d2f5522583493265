"""What a user gets wrong at the command line is told before it costs a run: by name, with exit status 1, and nothing is
written."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import tiny
import torch
import yaml
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

import trustmopd
from trustmopd.cli import app
from trustmopd.training.run import run_files

TRAINING = {
    "max_steps": 4,
    "learning_rate": 1e-3,
    "num_candidates": 16,
    "global_batch_size": 8,
    "per_device_train_batch_size": 4,
    "max_completion_length": 6,
    "calibration_batches": 1,
    "save_steps": 2,
    "save_total_limit": 9,
    "warmup_steps": 0,
    "record_allocation_every": 0,
    "use_cpu": True,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Checkpoints on disk: a base and two specialists of it."""
    folder, base = tmp_path_factory.mktemp("models"), tiny.model(0)
    for seed, name in enumerate(("math", "code"), start=1):
        tiny.save(tiny.specialist(base, seed), folder / name)
    tiny.save(base, folder / "base")
    return folder


@pytest.fixture
def recipe(models, tmp_path):
    tiny.prompts(24).to_json(tmp_path / "prompts.jsonl")
    fields = {
        "name": "slips",
        "student": str(models / "base"),
        "teachers": {name: str(models / name) for name in ("math", "code")},
        "prompts": {"path": str(tmp_path / "prompts.jsonl")},
        "training": TRAINING,
        "output": str(tmp_path / "run"),
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(fields, sort_keys=False))
    return path


@pytest.fixture
def run_dir(recipe):
    return recipe.parent / "run"


def cli(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


@pytest.fixture
def refuse(recipe, run_dir):
    """`train --dry-run` with these overrides ends with status 1, names all of `facts`, and writes nothing."""

    def check(*facts, overrides=(), options=("--dry-run",)):
        before = sorted(run_dir.rglob("*"))
        said = cli("train", recipe, *overrides, *options, code=1)
        assert said.startswith("error: ") or " error: " in said
        assert [fact for fact in facts if str(fact) not in said] == [], said
        assert sorted(run_dir.rglob("*")) == before

    return check


def steps_of(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


# ---- A pool whose members are not what they seem


@pytest.mark.parametrize(("role", "field"), [("the student", "student"), ("teacher 'code'", "teachers.code")])
def test_a_checkpoint_without_some_of_its_weights_is_refused(refuse, models, tmp_path, role, field):
    """They would be random: transformers only says so in a line."""
    there = models / ("base" if field == "student" else "code")
    path = tiny.incomplete(there, tmp_path / "incomplete")
    refuse(role, path, "layers.0.mlp.down_proj", overrides=[f"{field}={path}"])
    refuse(role, path, "layers.0.mlp.down_proj", overrides=[f"{field}={path}"], options=())


@pytest.mark.parametrize("kind", ["copied", "sharded", "rounded", "linked"])
def test_a_teacher_with_the_reference_s_weights_is_refused_before_loading(refuse, models, tmp_path, kind):
    other = tmp_path / "other"
    base = AutoModelForCausalLM.from_pretrained(models / "base")
    if kind == "copied":
        shutil.copytree(models / "base", other)
    elif kind == "linked":
        other.symlink_to(models / "base")
    else:
        (base.bfloat16() if kind == "rounded" else base).save_pretrained(other, max_shard_size="20KB")
        tiny.tokenizer().save_pretrained(other)
    refuse("'text'", other, models / "base", overrides=[f"teachers.text={other}"])


@pytest.mark.parametrize("kind", ["missing", "itself", "another vocabulary"])
def test_a_teachers_own_reference_that_cannot_serve_is_refused_before_loading(refuse, models, tmp_path, kind):
    reference = {"itself": models / "code", "missing": tmp_path / "nowhere"}.get(kind)
    if reference is None:
        reference = tmp_path / "gpt2"
        GPT2LMHeadModel(GPT2Config(vocab_size=24, n_embd=16, n_layer=1, n_head=2)).save_pretrained(reference)
    facts = {
        "missing": [reference],
        "itself": [reference, "its own reference"],
        "another vocabulary": ["24", "the student's tokenizer."],
    }
    own = f"teachers.code={{model: {models / 'code'}, reference: {reference}}}"
    refuse("teacher 'code'", *facts[kind], overrides=[own])


def told(recipe, *overrides, topic="reference"):
    """A row of the dry run's table, without its line breaks."""
    lines = CliRunner().invoke(app, ["train", str(recipe), *overrides, "--dry-run"]).output.splitlines()
    rows = [[cell.strip() for cell in line[1:-1].split("│")] for line in lines if line.startswith("│")]
    first = next(place for place, row in enumerate(rows) if row[0] == topic)
    after = next((place for place, row in enumerate(rows[first + 1 :], first + 1) if row[0]), len(rows))
    return "".join(row[1] for row in rows[first:after]).replace(" ", "")


@pytest.mark.parametrize(("field", "value"), [("revision", "step-1000"), ("dtype", "float16")])
def test_another_revision_or_dtype_of_the_student_is_a_reference_of_its_own(recipe, models, field, value):
    base = models / "base"
    said = told(recipe, f"teachers.code={{model: {models / 'code'}, reference: {{model: {base}, {field}: {value}}}}}")
    assert "theinitialstudent(ofmath)" in said and f"{base},{field}{value}(ofcode)" in said
    bare = told(recipe, f"teachers.code={{model: {models / 'code'}, reference: {base}}}")
    assert bare == "theinitialstudent"


def test_the_student_as_common_reference_is_the_student_whatever_folder_has_that_name(
    recipe, models, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(models / "math", tmp_path / "student")  # a teacher's weights: as a reference they are refused
    assert told(recipe, "reference=student") == "theinitialstudent"
    assert "teacher 'math' has the same weights" in cli("train", recipe, "reference=./student", "--dry-run", code=1)
    cli("plan", recipe, "reference=student")


def test_a_teacher_measured_from_the_student_in_place_of_its_base_is_told(recipe, models):
    assert "code:" in (said := told(recipe, "teachers.code.reference=student")) and "fall-back" in said
    assert "fall-back" not in told(recipe, f"teachers.code.reference={models / 'base'}")


def test_one_reference_in_two_places_is_refused(refuse, models, tmp_path):
    other = tiny.save(tiny.model(5), tmp_path / "other")
    own = [
        f"teachers.{name}={{model: {models / name}, reference: {{model: {other}, on: {on}}}}}"
        for name, on in (("math", "resident"), ("code", "offload"))
    ]
    refuse("'math'", "'code'", "resident", "offload", overrides=own)


def test_a_rule_that_reads_no_reference_does_not_ask_for_its_files(recipe, tmp_path):
    missing = f"teachers.code.reference={tmp_path / 'nowhere'}"
    cli("train", recipe, missing, "--dry-run", code=1)
    cli("train", recipe, missing, "allocation.rule=uniform", "--dry-run")


def test_teachers_of_several_bases_are_not_averaged(recipe, models, run_dir, tmp_path):
    other = tiny.save(tiny.model(5), tmp_path / "other")  # of the same shape
    for own in (other, "student"):
        for options in ((), ("--dry-run",)):
            said = cli("merge", recipe, f"teachers.code.reference={own}", *options, code=1)
            assert "code" in said and "one base" in said
    assert not run_dir.exists()
    assert "Would average 2" in cli("merge", recipe, f"teachers.code.reference={models / 'base'}", "--dry-run")
    both = [f"teachers.{name}.reference={other}" for name in ("math", "code")]
    assert "Would average 2" in cli("merge", recipe, *both, "--dry-run")


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed here")
@pytest.mark.parametrize(
    "field",
    [
        "training.teacher_placement=ray",
        "teachers.code={model: MODEL, on: ray}",
        "teachers.code.reference={model: MODEL, on: ray}",
    ],
)
def test_teachers_on_ray_without_ray_are_refused_with_the_command_that_installs_it(refuse, models, field):
    refuse("pip install 'trustmopd[ray]'", overrides=[field.replace("MODEL", str(models / "code"))])


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ("training.teacher_placement=offload", ["teacher_placement"]),
        ("teachers.code={model: MODEL, on: offload}", ["on: offload", "teacher 'code'"]),
        ("teachers.code.reference={model: OTHER, on: offload}", ["on: offload", "the reference of teacher 'code'"]),
    ],
)
def test_too_little_host_memory_names_what_the_user_wrote(recipe, models, tmp_path, monkeypatch, field, named):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=0, total=2**36))
    other = tiny.save(tiny.model(5), tmp_path / "other") if "OTHER" in field else ""
    said = cli("train", recipe, field.replace("MODEL", str(models / "code")).replace("OTHER", str(other)), code=1)
    assert "only 0 GiB" in said and all(name in said for name in named)
    assert ("teacher_placement" in said) == ("teacher_placement" in field)


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ("teachers.code={model: MODEL, on: cloud}", "teachers.code.on"),
        ("teachers.code={model: MODEL, on: ray, replicas: 0}", "teachers.code.replicas"),
        ("teachers.code={model: MODEL, on: ray, gpus: -1}", "teachers.code.gpus"),
        ("teachers.code={model: MODEL, on: ray, gpus: 1.5}", "'code'"),
        ("teachers.code={model: MODEL, gpus: 1}", "'code'"),
        ("training.teacher_placement=cloud", "teacher_placement"),
        ("training.ray_answers=float32", "ray_answers"),
        ("training.ray_timeout=0", "ray_timeout"),
    ],
)
def test_a_place_that_is_none_is_named(refuse, models, field, named):
    refuse(named, overrides=[field.replace("MODEL", str(models / "code"))])


def test_a_rule_that_scores_no_reference_takes_it_as_a_teacher(recipe, models):
    cli("train", recipe, f"teachers.text={models / 'base'}", "allocation.rule=uniform", "--dry-run")


def test_the_same_weights_with_other_positions_are_another_policy(recipe, models, tmp_path):
    stretched = AutoModelForCausalLM.from_pretrained(models / "base")
    stretched.config.rope_parameters = {**stretched.config.rope_parameters, "rope_theta": 5e5}
    tiny.save(stretched, tmp_path / "stretched")
    cli("train", recipe, f"teachers.text={tmp_path / 'stretched'}", "--dry-run")


def test_one_checkpoint_under_two_names_is_refused(refuse, models, tmp_path):
    shutil.copytree(models / "math", tmp_path / "again")
    again = [f"teachers.law={tmp_path / 'again'}"]
    refuse("'math'", "'law'", overrides=again)
    refuse("'math'", "'law'", overrides=[*again, "allocation.rule=uniform"])


def test_a_teacher_that_is_the_reference_but_for_rounding_ends_the_run_at_calibration(recipe, models, tmp_path):
    moved = AutoModelForCausalLM.from_pretrained(models / "base")
    with torch.no_grad():
        moved.model.norm.weight *= 1 + 1e-6
    near = tiny.save(moved, tmp_path / "near")
    said = cli("train", recipe, f"teachers.text={near}", code=1)
    assert "'text'" in said and "mu = " in said and "min_relative_mu" in said
    cli("calibrate", recipe, f"teachers.text={near}", "training.min_relative_mu=0")


def test_an_adapter_that_was_never_trained_is_refused(refuse, models, tmp_path):
    base = AutoModelForCausalLM.from_pretrained(models / "base")
    get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(tmp_path / "fresh")
    refuse("'text'", tmp_path / "fresh", overrides=[f"teachers.text.adapter={tmp_path / 'fresh'}"])


@pytest.mark.parametrize("shape", [{"layers": 3}, {"hidden": 64}])
def test_an_adapter_of_another_shape_is_refused_though_its_base_has_the_same_name(refuse, models, tmp_path, shape):
    other = tiny.model(0, **shape)
    tiny.save(other, tmp_path / "elsewhere" / "base")
    other.config._name_or_path = str(tmp_path / "elsewhere" / "base")
    adapter = tiny.adapter(other, tmp_path / "adapter", 1)
    refuse("'text'", adapter, "lora_A", overrides=[f"teachers.text.adapter={adapter}"])


def test_an_adapter_of_other_weights_of_the_same_shape_is_refused_where_its_base_is_at_hand(
    refuse, recipe, models, tmp_path
):
    def adapter_over(seed, folder):
        tiny.save(tiny.model(seed), folder / "base")
        trained_on = AutoModelForCausalLM.from_pretrained(folder / "base")
        return tiny.adapter(trained_on, folder / "adapter", 1)

    other = adapter_over(7, tmp_path / "other")
    refuse("'text'", other, tmp_path / "other" / "base", overrides=[f"teachers.text.adapter={other}"])
    copied = adapter_over(0, tmp_path / "copied")  # the same weights, somewhere else
    cli("train", recipe, f"teachers.text.adapter={copied}", "--dry-run")


# ---- Lengths, prompts


def test_more_tokens_than_a_model_has_positions_are_refused(refuse, models, tmp_path):
    refuse("the student", "256", overrides=["training.max_completion_length=250"])
    short = AutoModelForCausalLM.from_pretrained(models / "math")
    short.config.max_position_embeddings = 20
    tiny.save(short, tmp_path / "short")
    refuse("'math'", "20", overrides=[f"teachers.math={tmp_path / 'short'}"])
    learned = GPT2Config(vocab_size=tiny.VOCAB, n_positions=24, n_embd=8, n_layer=1, n_head=1, eos_token_id=2)
    tiny.save(GPT2LMHeadModel(learned), tmp_path / "gpt2")
    refuse("the reference", "24", overrides=[f"reference={tmp_path / 'gpt2'}"])


def test_positions_that_are_stretched_count(recipe, models, tmp_path):
    stretched = AutoModelForCausalLM.from_pretrained(models / "math")
    stretched.config.max_position_embeddings = 20
    stretched.config.rope_parameters = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    cli("train", recipe, f"teachers.math={tiny.save(stretched, tmp_path / 'stretched')}", "--dry-run")


def test_an_option_that_the_chat_template_does_not_have_is_told(recipe):
    with pytest.warns(UserWarning, match="enable_thinkin"):
        cli("train", recipe, "training.chat_template_kwargs={enable_thinkin: false}", "--dry-run")


def test_a_role_that_the_template_refuses_is_named_by_its_row(refuse, models, recipe, tmp_path):
    strict = "{{ raise_exception('no system turn') if messages[0]['role'] == 'system' }}" + tiny.TEMPLATE
    folders = {name: tmp_path / name for name in ("base", "math", "code")}
    for name, folder in folders.items():
        shutil.copytree(models / name, folder)
        tiny.tokenizer(template=strict).save_pretrained(folder)
    rows = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    rows[7]["prompt"].insert(0, {"role": "system", "content": "Be brief."})
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pool = [f"student={folders['base']}", f"teachers={{math: {folders['math']}, code: {folders['code']}}}"]
    refuse("row 7", "no system turn", overrides=pool)


def test_plain_text_for_a_chat_model_and_many_passes_are_told(recipe, tmp_path):
    rows = [json.dumps({"prompt": f"{number} + 1 ="}) for number in range(8)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(rows))
    with pytest.warns(UserWarning) as told:
        cli("train", recipe, "training.max_steps=400", "--dry-run")
    texts = [str(each.message) for each in told]
    assert any("chat template" in text for text in texts) and any("400 times" in text for text in texts)


def test_repeated_prompts_are_counted_and_another_encoding_is_told(recipe, refuse, tmp_path):
    lines = (tmp_path / "prompts.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "prompts.jsonl").write_text("".join([*lines, *lines[:5]]))
    assert "29 (5 of them are repeats)" in cli("train", recipe, "--dry-run")
    (tmp_path / "prompts.jsonl").write_text("".join(lines).replace("+", "é"), encoding="latin-1")
    refuse("UTF-8")


# ---- What a dry run knows


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_steps", 0),
        ("max_steps", 2.5),
        ("temperature", 0),
        ("top_p", 1.5),
        ("learning_rate", 0),
        ("save_steps", 0),
        ("bf16", "maybe"),
        ("gradient_checkpointing", "si"),
        ("num_train_epochs", 2),
        ("data_seed", 3),
        ("report_to", "wandb"),
        ("report_to", "wandbb"),
        ("use_vllm", "true"),
        ("vllm_mode", "serve"),
        ("vllm_model_impl", "llama"),
        ("vllm_gpu_memory_utilization", 1.5),
        ("vllm_gpu_memory_utilization", 0),
        ("vllm_tensor_parallel_size", 0),
        ("model_init_kwargs", "{torch_dtype: bfloat16}"),  # which TRL does not read
        ("use_liger_kernel", "true"),
        ("optim", "adamw_8bit"),
        ("optim", "adamm"),
        ("deepspeed", "ds.json"),
        ("lr_scheduler_type", "cosin"),
        ("eval_strategy", "steps"),
        ("save_strategy", "best"),
        ("learning_rate", ".inf"),
        ("repetition_penalty", 0),
        ("teacher_dtype", "int8"),
        ("teacher_dtype", 16),
        ("model_init_kwargs", "{dtype: bfloat}"),
        ("model_init_kwargs", "text"),
        ("chat_template_kwargs", "text"),
        ("generation_kwargs", "text"),
        ("generation_kwargs", "{temperatur: 1}"),
        ("generation_kwargs", "{max_new_tokens: 3}"),
        ("generation_kwargs", "{do_sample: false}"),
        ("dataloader_num_workers", -1),
        ("resume_from_checkpoint", "elsewhere"),
        ("adam_beta1", 1.5),
        ("fsdp", "true"),  # in one process
        ("teacher_placement", "sharded"),
        ("max_tokens_per_micro_batch", 0),
        ("max_tokens_per_micro_batch", -512),
        ("max_tokens_per_micro_batch", "many"),
        ("max_tokens_per_micro_batch", 0.5),
        ("answers_on_device_gib", -1),
        ("answers_on_device_gib", "all"),
        ("lr_scheduler_type", "cosine_with_min_lr"),  # which wants lr_scheduler_kwargs
    ],
)
def test_a_dry_run_refuses_what_the_run_could_not_do(refuse, field, value):
    refuse(*([] if field in ("optim", "lr_scheduler_type") else [field]), overrides=[f"training.{field}={value}"])


def test_a_benchmark_of_almost_that_name_is_suggested(refuse):
    refuse("'ifevl'", "Did you mean ifeval?", overrides=["evaluation.benchmarks=[ifevl]"])


@pytest.mark.parametrize(("peft", "pinned"), [("null", 3), ("{target_modules: [q_proj]}", 2)], ids=["all", "lora"])
def test_offload_pins_no_base_that_the_student_lends(recipe, caplog, peft, pinned):
    cli("train", recipe, "training.teacher_placement=offload", "training.max_steps=1", f"peft={peft}")
    assert f"{pinned} models of" in caplog.text  # two teachers; the reference is the student's own base under LoRA


def test_a_token_budget_is_a_field_of_recipes(recipe, run_dir):
    assert "1,024 tokens" in cli("train", recipe, "training.max_tokens_per_micro_batch=1024", "--dry-run")
    cli("train", recipe, "training.max_tokens_per_micro_batch=60", "training.max_steps=1")
    config = json.loads((run_dir / "manifest.json").read_text())["config"]
    assert config["max_tokens_per_micro_batch"] == 60 and config["global_batch_size"] == 8


def test_a_teacher_s_dtype_is_checked_before_loading(refuse, models):
    refuse("'math'", "bf16", overrides=[f"teachers.math={{model: {models / 'math'}, dtype: bf16}}"])


@pytest.mark.parametrize("truncation", ["error", "drop"])
def test_a_dry_run_refuses_prompts_that_are_all_too_long(refuse, truncation):
    refuse("max_prompt_length", overrides=["training.max_prompt_length=3", f"training.prompt_truncation={truncation}"])


def test_a_dry_run_knows_the_prompts_that_are_left(recipe, run_dir):
    settings = ["training.max_prompt_length=32", "training.prompt_truncation=drop", "training.max_steps=2"]
    cli("train", recipe, *settings)
    stored = json.loads((run_dir / "manifest.json").read_text())["prompts"]
    assert 0 < stored["over_max_prompt_length"] < 16
    assert f"{24 - stored['over_max_prompt_length']} from" in cli("train", recipe, *settings, "--resume", "--dry-run")


def test_a_dry_run_refuses_an_output_that_cannot_be_written(refuse, tmp_path):
    (tmp_path / "file").write_text("mine")
    refuse("output", tmp_path / "file", overrides=[f"output={tmp_path / 'file'}"])
    refuse("output", tmp_path / "file", overrides=[f"output={tmp_path / 'file' / 'below'}"])
    refuse("output", tmp_path / "file", overrides=[f"output={tmp_path / 'file'}"], options=())
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    refuse("output", tmp_path / "link", overrides=[f"output={tmp_path / 'link'}"])


@pytest.mark.parametrize("options", [("--dry-run",), ()], ids=["dry", "real"])
@pytest.mark.parametrize(
    ("peft", "named"),
    [
        ("{target_modules: [q_prj]}", "q_prj"),
        ("{target_modules: [v_proj, q_prj]}", "q_prj"),
        ("{target_modules: [q_proj], r: '4'}", "'str'"),
        ("{target_modules: [q_proj, lm_head]}", "lm_head"),
        ("{target_modules: [q_proj], task_type: SEQ_CLS}", "SEQ_CLS"),
    ],
)
def test_an_adapter_that_the_student_cannot_have_is_refused_before_loading(refuse, peft, named, options):
    refuse(named, overrides=[f"peft={peft}"], options=options)


@pytest.mark.parametrize("options", [["--dry-run"], ["training.max_steps=1"]], ids=["dry", "real"])
def test_an_engine_that_cannot_evaluate_the_trained_adapter_is_told_before_training(recipe, options):
    adapter = ["peft={target_modules: [q_proj]}", "evaluation.engine=vllm"]
    with pytest.warns(UserWarning, match=r"evaluation.engine = vllm.*trustmopd merge.*transformers"):
        cli("train", recipe, *adapter, *options)
    for fits in (["peft={target_modules: [q_proj]}"], ["evaluation.engine=vllm"]):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            cli("train", recipe, *fits, "--dry-run", f"output={recipe.parent / 'other'}")
        assert not [each for each in told if "evaluation.engine" in str(each.message)]


@pytest.mark.parametrize("targets", ["all-linear", "'.*q_proj'", "[self_attn.q_proj, layers.0.mlp.up_proj]"])
def test_targets_may_be_named_in_every_way_that_peft_knows(recipe, targets):
    cli("train", recipe, f"peft={{target_modules: {targets}}}", "--dry-run")


@pytest.mark.parametrize("role", ["student", "reference"])
def test_an_adapter_in_place_of_a_model_is_told_with_the_command_that_makes_one(refuse, models, tmp_path, role):
    adapter = tiny.adapter(AutoModelForCausalLM.from_pretrained(models / "base"), tmp_path / "adapter", 1)
    refuse(f"the {role}", "trustmopd merge", overrides=[f"{role}={adapter}"])


def test_a_dry_run_compares_a_calibration_with_the_run(refuse, recipe, run_dir):
    cli("calibrate", recipe)
    calibration = shutil.move(run_dir / "calibration.json", run_dir.parent / "calibration.json")
    cli("train", recipe, f"calibration={calibration}", "--dry-run")
    refuse("temperature", "0.6", "0.9", overrides=[f"calibration={calibration}", "training.temperature=0.9"])
    refuse("score", overrides=[f"calibration={calibration}", "allocation.score=likelihood"])


def test_no_is_a_strategy_though_yaml_reads_it_as_false(recipe, run_dir):
    said = cli("train", recipe, "training.save_strategy=no", "training.max_steps=1")
    assert not list((run_dir / "checkpoints").glob("checkpoint-*"))
    assert "checkpoint-1" not in said and "save_strategy" in said


def test_a_dry_run_says_what_the_run_will_do(recipe):
    said = "".join(cli("train", recipe, "--dry-run").replace("│", "").split())  # lines break where a path is long
    for fact in ("1.33passes", "192inall", "MiB", "CPU"):  # 4 × 8 of 24 prompts, each up to 6 tokens
        assert fact in said


# ---- Resuming


@pytest.fixture
def begun(recipe):
    """A run of two steps, with a checkpoint after the second."""
    cli("train", recipe, "training.max_steps=2")
    return recipe


def test_a_dry_run_names_the_checkpoint_that_a_run_resumes_from(begun, run_dir):
    said = "".join(cli("train", begun, "--resume", "--dry-run").replace("│", "").split())
    assert str(run_dir / "checkpoints" / "checkpoint-2") in said
    assert "rolloutsbeforetraining" not in said  # a resumed run does not calibrate


@pytest.mark.parametrize(
    "override",
    [
        "allocation.gamma=3",
        "training.temperature=0.9",
        "training.global_batch_size=4",
        "training.optim=sgd",
        "training.max_completion_length=5",
    ],
)
def test_a_resume_with_other_lessons_is_refused_already_by_a_dry_run(refuse, begun, override):
    field = override.rpartition(".")[2].partition("=")[0]
    refuse(field, "checkpoint-2", overrides=[override], options=("--resume", "--dry-run"))
    refuse(field, "checkpoint-2", overrides=[override], options=("--resume",))


def test_a_refused_resume_leaves_the_recipe_of_the_run(refuse, begun, run_dir):
    before = (run_dir / "recipe.yaml").read_text()
    refuse("gamma", overrides=["allocation.gamma=3"], options=("--resume",))
    assert (run_dir / "recipe.yaml").read_text() == before


def test_a_resume_to_fewer_steps_than_there_are_is_refused(refuse, begun, run_dir):
    before = (run_dir / "recipe.yaml").read_text()
    for options in (("--resume", "--dry-run"), ("--resume",)):
        refuse("max_steps = 1", "checkpoint-2", overrides=["training.max_steps=1"], options=options)
    assert (run_dir / "recipe.yaml").read_text() == before


def test_a_folder_is_one_run_or_holds_one_for_each_seed(refuse, begun, tmp_path, run_dir):
    for options in ((), ("--resume",), ("--dry-run",)):
        refuse(run_dir, "seeds = [1, 2]", "output=", overrides=["seeds=[1, 2]"], options=options)
    several = f"output={tmp_path / 'several'}"
    cli("train", begun, "training.max_steps=1", "seeds=[1, 2]", several)
    cli("train", begun, several, "seeds=[1]", "--resume", code=1)
    assert not (tmp_path / "several" / "checkpoints").exists()


def test_a_dry_run_says_that_the_calibration_in_the_folder_is_used(recipe, run_dir):
    cli("calibrate", recipe)
    saved = str(run_dir / "calibration.json")

    def said(*arguments):
        return "".join(cli(*arguments, "--dry-run").replace("│", "").split())

    assert saved in said("train", recipe)
    assert saved not in said("train", recipe, "training.temperature=0.9")  # it does not fit
    assert saved not in said("calibrate", recipe)  # which measures it anew


def test_a_resume_with_other_prompts_is_refused_already_by_a_dry_run(refuse, begun):
    lines = (begun.parent / "prompts.jsonl").read_text().splitlines(keepends=True)
    (begun.parent / "prompts.jsonl").write_text("".join(lines[::-1]))
    refuse("prompt set", "checkpoint-2", options=("--resume", "--dry-run"))


@pytest.mark.parametrize(
    "file",
    ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "calibration.json"],
)
def test_a_checkpoint_that_lacks_a_file_is_not_resumed(refuse, begun, run_dir, file):
    (run_dir / "checkpoints" / "checkpoint-2" / file).unlink()
    refuse("checkpoint-2", overrides=[], options=("--resume", "--dry-run"))
    refuse("checkpoint-2", overrides=[], options=("--resume",))


@pytest.mark.parametrize(
    ("file", "field"),
    [
        ("manifest.json", "config"),
        ("manifest.json", "models"),
        ("manifest.json", "prompts"),
        ("calibration.json", "mu"),
    ],
)
def test_a_checkpoint_whose_files_lack_a_field_is_refused_with_file_and_field(refuse, begun, run_dir, file, field):
    path = run_dir / "checkpoints" / "checkpoint-2" / file
    path.write_text(json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != field}))
    refuse(f"checkpoint-2/{file} has no {field}", options=("--resume", "--dry-run"))
    refuse(f"checkpoint-2/{file} has no {field}", options=("--resume",))


def test_a_dry_run_compares_the_models_of_a_resume(refuse, begun, models, tmp_path):
    resumes = ("--resume", "--dry-run")
    refuse("teacher 'code'", "checkpoint-2", overrides=["teachers.code=null"], options=resumes)
    refuse("peft", "checkpoint-2", overrides=["peft={target_modules: [q_proj]}"], options=resumes)
    moved = shutil.copytree(models / "math", tmp_path / "moved")
    said = "".join(cli("train", begun, f"teachers.math={moved}", *resumes).replace("│", "").split())
    assert "teacher'math'" in said and str(moved) in said


def test_a_dry_run_compares_the_references_and_the_engine_of_a_resume(refuse, recipe, models, run_dir, tmp_path):
    other, resumes = tiny.save(tiny.specialist(tiny.model(0), 7), tmp_path / "other"), ("--resume", "--dry-run")
    own = f"teachers.code.reference={other}"
    cli("train", recipe, "training.max_steps=2", own)
    cli("train", recipe, own, *resumes)
    refuse("reference of teacher 'code'", "checkpoint-2", options=resumes)
    refuse("reference of teacher 'math'", overrides=[own, f"teachers.math.reference={other}"], options=resumes)
    same, copied = (shutil.copytree(each, tmp_path / f"copy-{n}") for n, each in enumerate((models / "base", other)))
    for override, name in ((f"reference={same}", "thereference"), (f"teachers.code.reference={copied}", "'code'")):
        said = "".join(cli("train", recipe, own, override, *resumes).replace("│", "").split())
        assert f"{name}{override.partition('=')[2]}insteadof" in said  # moved, perhaps: the run compares the weights
    refuse("reference of teacher 'code'", overrides=[f"teachers.code.reference={same}"], options=resumes)
    manifest = run_dir / "checkpoints" / "checkpoint-2" / "manifest.json"
    stored = json.loads(manifest.read_text())
    stored["engine"] |= {"name": "FSDP2", "checkpoints": "sharded", "processes": 8}
    manifest.write_text(json.dumps(stored))
    for options in (resumes, ("--resume",)):
        refuse("FSDP2", "one process", overrides=[own], options=options)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"learning_rate": 1e-5}, [1e-3, 1e-3, 1e-5, 1e-5]),
        ({"lr_scheduler_type": "linear"}, [1e-3, 1e-3, 5e-4, 2.5e-4]),
        ({"learning_rate": 1e-4, "warmup_steps": 4}, [1e-3, 1e-3, 5e-5, 7.5e-5]),
        ({"weight_decay": 0.5}, [1e-3] * 4),
    ],
)
def test_optimization_settings_that_change_on_resume_take_effect(begun, run_dir, changes, expected):
    cli("train", begun, *(f"training.{name}={value}" for name, value in changes.items()), "--resume")
    assert [line["learning_rate"] for line in steps_of(run_dir)] == pytest.approx(expected)
    manifest = json.loads((run_dir / "manifest.json").read_text())
    resumed = manifest["resumed"][-1]
    assert resumed["step"] == 2
    assert {name: new for name, (_, new) in resumed["changed"].items() if name != "max_steps"} == changes
    groups = torch.load(run_dir / "checkpoints" / "checkpoint-4" / "optimizer.pt")["param_groups"]
    assert groups[0]["weight_decay"] == changes.get("weight_decay", 0.0)


def test_intervals_that_change_on_resume_take_effect(begun, run_dir):
    cli("train", begun, "training.save_steps=1", "--resume")
    assert (run_dir / "checkpoints" / "checkpoint-3").is_dir()


def test_an_adapter_of_another_kind_is_not_resumed(recipe, refuse):
    lora = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    cli("train", recipe, "training.max_steps=2", f"peft={json.dumps(lora)}")
    other = json.dumps({**lora, "lora_alpha": 16})
    refuse("lora_alpha", "8", "16", overrides=[f"peft={other}"], options=("--resume",))
    refuse("adapter", overrides=[], options=("--resume",))


def test_a_refused_resume_leaves_the_run_s_recipe_as_it_was(begun, run_dir):
    before = (run_dir / "recipe.yaml").read_text()
    cli("train", begun, "allocation.gamma=3", "--resume", code=1)
    assert (run_dir / "recipe.yaml").read_text() == before


def test_resuming_what_never_began_and_what_has_ended_is_told(recipe, run_dir):
    said = cli("train", recipe, "training.max_steps=2", "--resume")
    assert "no checkpoint" in said and str(run_dir) in said
    before = (run_dir / "recipe.yaml").read_text()
    assert "Nothing to train: step 2" in cli(
        "train", recipe, "training.max_steps=2", "training.weight_decay=1", "--resume"
    )
    assert (run_dir / "recipe.yaml").read_text() == before


def test_a_trained_run_keeps_its_calibration(begun, run_dir):
    before = (run_dir / "calibration.json").read_text()
    cli("calibrate", begun, "training.temperature=1.0", code=1)
    cli("calibrate", begun, "--dry-run", code=1)
    assert "temperature" in cli("diagnose", begun, "training.temperature=1.0", "--rollouts", "8", code=1)
    cli("diagnose", begun, "--rollouts", "8")
    assert (run_dir / "calibration.json").read_text() == before


def test_a_student_that_is_not_saved_is_told_and_not_promised(recipe, run_dir):
    with pytest.warns(UserWarning, match="save_strategy"):
        said = cli("train", recipe, "training.save_strategy=no", "training.max_steps=1")
    assert str(run_dir / "checkpoints" / "checkpoint-1") not in said


def process(recipe, *arguments, **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(trustmopd.__file__).parents[1])}
    command = [sys.executable, "-m", "trustmopd", "train", str(recipe), *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options
    )


def test_a_checkpoint_that_cannot_be_written_is_told_without_a_traceback(recipe, run_dir):
    largest = 60_000  # bytes of a file: less than the student's weights
    full = process(recipe, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest)))
    said = full.communicate(timeout=120)[1]
    assert full.returncode == 1 and "Traceback" not in said
    assert str(run_dir / "checkpoints" / "checkpoint-2") in said


@pytest.mark.slow
@pytest.mark.parametrize(("save_steps", "killed_after"), [(3, 7), (4, 9)], ids=["at the end of an epoch", "within one"])
def test_a_run_killed_in_its_third_epoch_goes_on_with_the_prompts_of_that_epoch(
    recipe, run_dir, tmp_path, save_steps, killed_after
):
    """24 prompts are three steps: step 6 ends the second epoch, step 8 lies in the third."""
    settings = [f"training.save_steps={save_steps}", "training.max_steps=40"]
    killed = process(recipe, *settings)
    until = time.monotonic() + 120
    metrics = run_dir / "metrics.jsonl"
    while not metrics.is_file() or f'"step": {killed_after},' not in metrics.read_text():
        assert killed.poll() is None, killed.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    # Steps are short: the kill may come some steps late. What is resumed is the checkpoint that this test is about.
    for checkpoint in (run_dir / "checkpoints").glob("checkpoint-*"):
        if int(checkpoint.name.partition("-")[2]) > save_steps * 2:
            shutil.rmtree(checkpoint)
    assert (run_dir / "checkpoints" / f"checkpoint-{2 * save_steps}" / "manifest.json").is_file()
    end = ["training.max_steps=12", f"training.save_steps={save_steps}"]
    cli("train", recipe, *end, "--resume")
    cli("train", recipe, *end, f"output={tmp_path / 'whole'}")
    expected, found = steps_of(tmp_path / "whole"), steps_of(run_dir)
    assert [line["step"] for line in found] == list(range(1, 13))
    for name in ("loss", "weight/math", "epoch", "grad_norm"):
        assert [line[name] for line in found] == pytest.approx([line[name] for line in expected], abs=1e-6), name
    assert len({line["loss"] for line in expected}) == 12


# ---- What an earlier run left


def test_a_new_run_sets_aside_the_checkpoints_of_an_earlier_one(begun, run_dir):
    cli("train", begun, code=1)  # the command line asks first
    (run_dir / "checkpoints" / "checkpoint-2" / "manifest.json").unlink()  # as a run that was killed while saving
    shutil.copytree(run_dir / "checkpoints" / "checkpoint-2", run_dir / "checkpoints" / "checkpoint-90")
    cli("train", begun)
    assert sorted(path.name for path in (run_dir / "checkpoints").glob("checkpoint-*")) == [
        "checkpoint-2",
        "checkpoint-4",
    ]
    aside = run_dir / "checkpoints" / "_set-aside"
    assert sorted(path.name for path in aside.iterdir()) == ["checkpoint-2.1", "checkpoint-90.1"]


def test_a_second_process_does_not_write_into_a_run_that_is_training(recipe, run_dir):
    first = process(recipe, "training.max_steps=400", "training.save_strategy=no")
    until = time.monotonic() + 120
    try:
        while not (run_dir / "metrics.jsonl").is_file():
            assert first.poll() is None, first.stderr.read()
            assert time.monotonic() < until
            time.sleep(0.05)
        cli("train", recipe, code=1)
        assert first.poll() is None
    finally:
        first.kill()
        first.communicate()


# ---- Broken files of a run that is resumed


@pytest.mark.parametrize("broken", ["", '{"schema_version": 0}', '{"schema_version": 1, "dev', None])
def test_a_broken_cost_file_is_set_aside_and_does_not_stop_a_resumed_run(begun, run_dir, caplog, broken):
    cost = run_dir / "cost.json"
    cost.unlink()
    cost.mkdir() if broken is None else cost.write_text(broken)
    cli("train", begun, "--resume")
    assert json.loads(cost.read_text())["training"]["steps"] == 4
    aside = run_dir / "cost.json.broken"
    assert aside.is_dir() if broken is None else aside.read_text() == broken
    assert sum(str(cost) in record.getMessage() for record in caplog.records) == 1


def test_a_broken_trainer_state_is_refused_before_models_are_loaded(begun, run_dir):
    state = run_dir / "checkpoints" / "checkpoint-2" / "trainer_state.json"
    whole = json.loads(state.read_text())
    damaged = [{name: whole[name] for name in whole if name != left_out} for left_out in ("epoch", "log_history")]
    broken = [None, {}, [], {"global_step": 2}, whole | {"global_step": "2"}, whole | {"a new field": 1}, *damaged]
    for text in (*map(json.dumps, broken), "{"):
        state.write_text(text)
        for options in (["--resume"], ["--resume", "--dry-run"]):
            said = cli("train", begun, *options, code=1)
            assert str(state) in said and "another checkpoint" in said
            assert "Engine:" not in said  # which is said once the models are loaded


def test_a_broken_calibration_of_a_checkpoint_is_mended_as_the_message_says(begun, run_dir):
    calibration = run_dir / "checkpoints" / "checkpoint-2" / "calibration.json"
    for broken in ('{"schema_version": 1, "mu"', '{"schema_version": 1}'):
        calibration.write_text(broken)
        for options in (["--resume"], ["--resume", "--dry-run"]):
            said = cli("train", begun, *options, code=1)
            assert str(calibration) in said and "trustmopd calibrate" not in said and "Engine:" not in said
    shutil.copy(run_dir / "calibration.json", calibration)
    cli("train", begun, "--resume")


def test_checkpoints_that_are_set_aside_are_told_apart(begun, run_dir, caplog):
    checkpoints = run_dir / "checkpoints"
    for step in (3, 5):
        shutil.copytree(checkpoints / "checkpoint-2", checkpoints / f"checkpoint-{step}")
    (checkpoints / "checkpoint-3" / "manifest.json").unlink()
    foreign = checkpoints / "checkpoint-5" / "manifest.json"
    foreign.write_text(json.dumps(json.loads(foreign.read_text()) | {"run": "another"}))
    run_files.set_aside(checkpoints, json.loads((run_dir / "manifest.json").read_text())["run"], step=1)
    said = {name: next(r.getMessage() for r in caplog.records if f"{name} " in r.getMessage())
            for name in ("checkpoint-2", "checkpoint-3", "checkpoint-5")}  # fmt: skip
    assert "step 1" in said["checkpoint-2"] and "cut short" in said["checkpoint-3"]
    assert "another run" in said["checkpoint-5"]
    assert not any("another run" in said[name] for name in ("checkpoint-2", "checkpoint-3"))


def test_steps_that_were_trained_are_told_beside_a_later_checkpoint_of_another_run(begun, run_dir):
    later = shutil.copytree(run_dir / "checkpoints" / "checkpoint-2", run_dir / "checkpoints" / "checkpoint-4")
    stored = json.loads((later / "manifest.json").read_text())
    (later / "manifest.json").write_text(json.dumps(stored | {"run": "another"}))
    said = cli("train", begun, "--resume")
    assert "Trained to step 4" in said and "Nothing to train" not in said
    manifest = run_dir / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"run": "a third"}))
    assert str(run_dir / "checkpoints") in cli("train", begun, "--resume", code=1)


@pytest.mark.parametrize("words", [["quickstart", "--out", "new"], ["report", "."]])
def test_without_the_extra_that_draws_a_verb_names_it_before_it_computes(words: list[str], tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['matplotlib'] = None; from trustmopd.cli import app; app(sys.argv[1:])"
    command = [sys.executable, "-c", hidden, *words]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 1 and "trustmopd[viewer]" in ended.stderr and "Traceback" not in ended.stderr
    assert not list(tmp_path.iterdir())
