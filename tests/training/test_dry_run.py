"""What is known of a run before weights are loaded: what it will do, and that it cannot do it."""

import shutil
import warnings
from importlib.util import find_spec
from types import SimpleNamespace

import psutil
import pytest
import small_runs
import tiny

from trustmopd import load_recipe
from trustmopd.training.dry_run import dry_run
from trustmopd.training.prepare import config_of, prepare
from trustmopd.training.stages import calibrate_recipe, check_runs, train_recipe
from trustmopd.util.files import check_writable


@pytest.fixture
def recipe(checkpoints, tmp_path):
    """Overrides of a small recipe make a recipe."""
    path = small_runs.recipe(tmp_path, checkpoints)
    return lambda *overrides: load_recipe(path, overrides)


@pytest.fixture
def told(recipe):
    """What a dry run says of one topic."""
    return lambda topic, *overrides, **how: dry_run(prepare(recipe(*overrides)), **how).topics[topic]


def refused(recipe, *facts):
    """A dry run raises an error with all of these facts, and nothing is written."""
    before = sorted(recipe.output.rglob("*"))
    with pytest.raises(ValueError) as refusal:
        dry_run(prepare(recipe))
    assert [fact for fact in facts if str(fact) not in str(refusal.value)] == [], refusal.value
    assert sorted(recipe.output.rglob("*")) == before


# ---- What it says


def test_it_says_what_the_run_will_do(recipe):
    topics = dry_run(prepare(recipe())).topics
    assert "4 steps of 8 prompts (4 × 2 accumulation)" in topics["training"]
    assert "1.33 passes" in topics["training"] and "192 in all" in topics["training"]  # 4 × 8 of 24 prompts, 6 tokens
    assert "MiB" in topics["weights"] and topics["machine"] == "CPU" and topics["prompts"].startswith("24 from ")
    assert topics["reference"] == "the initial student"


@pytest.mark.parametrize(
    ("override", "topic", "words"),
    [
        ("allocation.rule=uniform", "reference", "not loaded: this rule needs none"),
        ("training.max_tokens_per_micro_batch=1024", "training", "1,024 tokens"),
        ("teachers.code.reference={model: BASE, revision: main}", "reference", "BASE, revision main (of code)"),
        ("teachers.code.reference={model: BASE, dtype: float16}", "reference", "BASE, dtype float16 (of code)"),
        ("teachers.code.reference=student", "reference", "code: measured from the student, which is a fall-back"),
    ],
)
def test_it_says_what_a_setting_changes(told, checkpoints, override, topic, words):
    assert words.replace("BASE", checkpoints["base"]) in told(topic, override.replace("BASE", checkpoints["base"]))


def test_repeated_prompts_are_counted_and_long_ones_that_are_dropped_are_not(recipe, told, tmp_path):
    lines = (tmp_path / "prompts.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "prompts.jsonl").write_text("".join([*lines, *lines[:5]]))
    assert told("prompts").startswith("29 (5 of them are repeats)")
    (tmp_path / "prompts.jsonl").write_text("".join(lines))
    limit = "training.max_prompt_length=32"
    kept = int(told("prompts", limit, "training.prompt_truncation=drop").partition(" ")[0])
    assert 8 <= kept < 24
    for truncation in ("drop", "error"):
        refused(recipe("training.max_prompt_length=3", f"training.prompt_truncation={truncation}"), "24 of 24")


def test_a_calibration_is_compared_with_the_run(recipe, told, tmp_path):
    assert told("calibration") == "1 × 8 rollouts before training"
    calibrate_recipe(recipe())
    saved = tmp_path / "run" / "calibration.json"
    assert told("calibration").startswith(str(saved))
    assert "rollouts" in told("calibration", "training.temperature=0.9"), "it does not fit"
    assert "rollouts" in told("calibration", calibrate=True), "which measures it anew"
    elsewhere = f"calibration={shutil.move(saved, tmp_path / 'calibration.json')}"
    assert told("calibration", elsewhere) == str(tmp_path / "calibration.json")
    refused(recipe(elsewhere, "training.temperature=0.9"), "temperature", "0.6", "0.9")
    refused(recipe(elsewhere, "allocation.score=likelihood"), "score")


# ---- What it refuses


@pytest.mark.parametrize(
    ("setting", "facts"),
    [
        ("eval_strategy=steps", "eval_strategy"),
        ("save_strategy=best", "save_strategy"),
        ("resume_from_checkpoint=elsewhere", "resume_from_checkpoint"),
        ("fsdp=true", "fsdp"),  # in one process
        ("teacher_placement=sharded", "teacher_placement"),
    ],
)
def test_what_a_recipe_s_run_could_not_do_is_refused(recipe, setting, facts):
    refused(recipe(f"training.{setting}"), facts)


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
def test_an_adapter_that_the_student_cannot_have_is_refused_before_loading(recipe, peft, named):
    refused(recipe(f"peft={peft}"), named)


@pytest.mark.parametrize("targets", ["all-linear", "'.*q_proj'", "[self_attn.q_proj, layers.0.mlp.up_proj]"])
def test_targets_may_be_named_in_every_way_that_peft_knows(told, targets):
    assert "LoRA" in told("student", f"peft={{target_modules: {targets}}}")


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed here")
@pytest.mark.parametrize(
    "field",
    [
        "training.teacher_placement=ray",
        "teachers.code={model: MODEL, on: ray}",
        "teachers.code.reference={model: MODEL, on: ray}",
    ],
)
def test_teachers_on_ray_without_ray_are_refused_with_the_command_that_installs_it(recipe, checkpoints, field):
    refused(recipe(field.replace("MODEL", checkpoints["code"])), "pip install 'trustmopd[ray]'")


@pytest.mark.parametrize("kind", ["a file", "below a file", "a broken link"])
def test_an_output_that_cannot_be_written_is_refused(tmp_path, kind):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    folder = {"a file": "file", "below a file": "file/below", "a broken link": "link"}[kind]
    with pytest.raises(ValueError, match=f"output {tmp_path / folder}"):
        check_writable(tmp_path / folder)


def test_nothing_is_trained_for_an_output_that_cannot_be_written(recipe, tmp_path):
    (tmp_path / "file").write_text("mine")
    for check in (lambda given: dry_run(prepare(given)), train_recipe):
        with pytest.raises(ValueError, match=f"output {tmp_path / 'file'}"):
            check(recipe(f"output={tmp_path / 'file'}"))


# ---- When the pool is loaded


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ("training.teacher_placement=offload", ["teacher_placement"]),
        ("teachers.code={model: MODEL, on: offload}", ["on: offload", "teacher 'code'"]),
        ("teachers.code.reference={model: OTHER, on: offload}", ["on: offload", "the reference of teacher 'code'"]),
    ],
)
def test_too_little_host_memory_names_what_the_user_wrote(recipe, checkpoints, tmp_path, monkeypatch, field, named):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=0, total=2**36))
    other = tiny.save(tiny.model(5), tmp_path / "other")
    overridden = recipe(field.replace("MODEL", checkpoints["code"]).replace("OTHER", other))
    with pytest.raises(ValueError, match="only 0 GiB") as refusal:
        prepare(overridden).trainer(0)
    assert [fact for fact in named if fact not in str(refusal.value)] == []
    assert ("teacher_placement" in str(refusal.value)) == ("teacher_placement" in field)


@pytest.mark.parametrize(("peft", "pinned"), [("null", 4), ("{target_modules: [q_proj]}", 3)], ids=["all", "lora"])
def test_offload_pins_no_base_that_the_student_lends(recipe, caplog, peft, pinned):
    prepare(recipe("training.teacher_placement=offload", f"peft={peft}")).trainer(0)
    assert f"{pinned} models of" in caplog.text  # three teachers; the reference is the student's own base under LoRA


def test_an_engine_that_cannot_evaluate_the_trained_adapter_is_told_before_training(recipe):
    adapter, engine = "peft={target_modules: [q_proj]}", "evaluation.engine=vllm"
    with pytest.warns(UserWarning, match=r"evaluation.engine = vllm.*trustmopd merge.*transformers"):
        check_runs(recipe(adapter, engine))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_runs(recipe(adapter))
        check_runs(recipe(engine))


def test_no_is_a_strategy_though_yaml_reads_it_as_false(recipe):
    assert config_of(recipe("training.save_strategy=no"), 0).save_strategy == "no"


# ---- Views


def test_it_shows_one_prompt_as_each_policy_reads_it_and_what_the_reference_reads(told, recipe):
    prompted = "teachers.prompted={view: {system: math}}"
    shown = told("views", "teachers.code.view={system: think}", prompted).splitlines()
    (student,) = [line for line in shown if line.startswith("the student, ")]
    assert "teacher 'if'" in student and "the reference:" in student and "user: 0 + 0" in student
    (code,) = [line for line in shown if line.startswith("teacher 'code'")]
    assert "system 'think'" in code and "'system: think\\nuser: 0 + 0\\nassistant: '" in code
    tokens = int(code.partition("): ")[2].split()[0])
    assert tokens == len("system: think\nuser: 0 + 0\nassistant: ")
    # A trained teacher's reference reads as it does; that of a prompted one as the student.
    assert any(line.startswith("the reference of teacher 'code' (system 'think')") for line in shown)
    assert not any(line.startswith("the reference of teacher 'prompted'") for line in shown)
    assert "views" not in dry_run(prepare(recipe())).topics


def test_a_calibration_and_a_run_know_the_views_that_they_were_made_with(recipe):
    calibrate_recipe(recipe("teachers.code.view={system: think}"))
    file = recipe().output / "calibration.json"
    with pytest.raises(ValueError, match=r"views\.code"):
        dry_run(prepare(recipe(f"calibration={file}")))
    with pytest.raises(ValueError, match=r"views\.code"):
        dry_run(prepare(recipe(f"calibration={file}", "teachers.code.view={system: others}")))
    train_recipe(recipe("teachers.code.view={system: think}", "training.max_steps=2", "training.save_steps=2"))
    with pytest.raises(ValueError, match="teacher 'code' was .*system 'think'"):
        dry_run(prepare(recipe("training.save_steps=2")), resume=True)
