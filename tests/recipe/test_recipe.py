"""Recipes: what the shipped ones say, how files and overrides combine, and what a person is told after a slip."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import trustmopd.recipe.recipe
from trustmopd.recipe import OWNED_ELSEWHERE, Recipe, load_recipe
from trustmopd.recipe.rules import PARTS, RULES, Trust
from trustmopd.recipe.teacher_source import TeacherSource
from trustmopd.recipe.yaml_layers import RecipeError

pytestmark = pytest.mark.unit

TRUST = {"rule": "trust", "gamma": 7.0, "score": "displacement", "granularity": "token", "calibrated": True}
REST = {"target": {"rule": "geometric_mean"}, "emphasis": {"rule": "even"}}
ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "recipes").glob("*-*b/*.yaml"))
SINGLECAP = ROOT / "recipes/smollm3-3b/singlecap-trust.yaml"

SMALL = """
name: small
student: base
teachers: {math: m, code: {model: c, revision: v1, dtype: bfloat16}}
prompts: {path: prompts.jsonl}
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "recipe.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def fails(path: Path, overrides=()) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    error = caught.value
    assert error.__context__ is None or error.__suppress_context__, "a traceback of pydantic or YAML comes with it"
    return str(error)


def test_reading_a_recipe_does_not_load_torch():
    source = str(Path(trustmopd.recipe.__file__).parents[2])
    code = "import trustmopd.recipe.recipe, sys; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": source})


# What ships


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_shipped_recipe_loads_and_writes_to_a_folder_of_its_own(path):
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    assert recipe.output == Path("runs") / path.parent.name / path.stem
    assert recipe.seeds == [0, 1, 2, 3, 4]
    assert recipe.evaluation.benchmarks == ["aime25", "aime26", "lcb_v5", "lcb_v6", "ifeval", "ifbench"]
    assert list(recipe.teachers) == ["math", "code", "if"]


def test_every_trained_row_of_the_paper_has_a_recipe():
    shared = ["trust", "uniform", "random", "single-math", "single-code", "single-if"]
    shared += ["likelihood", "negative-entropy", "teacher-student-kl", "without-mu", "response-level"]
    shared += ["gamma-3", "gamma-5", "gamma-9"]
    expected = {f"smollm3-3b/{data}-{row}" for data in ("singlecap", "multicap") for row in shared}
    expected.add("smollm3-3b/singlecap-routed")
    for data in ("singlecap", "multicap"):
        for row in ("trust", "uniform"):
            expected |= {f"smollm3-3b/transfer-data-{data}-{row}", f"r1-distill-qwen-7b/{data}-{row}"}
    assert {f"{path.parent.name}/{path.stem}" for path in SHIPPED} == expected


def test_the_trust_recipe_states_the_hyper_parameters_of_the_paper():
    recipe = load_recipe(SINGLECAP)
    assert recipe.config_fields() == {
        "allocation": TRUST,
        **REST,
        "domain_column": "domain",
        "optim": "adamw_torch_fused",
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 0.03,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "max_steps": 116,
        "global_batch_size": 64,
        "per_device_train_batch_size": 4,
        "temperature": 0.6,
        "top_p": 1.0,
        "max_prompt_length": 4096,
        "max_completion_length": 8192,
        "num_candidates": 128,
        "distillation_temperature": 1.0,
        "calibration_batches": 8,
    }
    assert recipe.reference is None and recipe.prompts.path == "./data/singlecap"
    assert recipe.evaluation.temperature == 0.6 and recipe.evaluation.samples is None


@pytest.mark.parametrize(
    ("folder", "student", "teachers"),
    [
        (
            "smollm3-3b",
            "BytedTsinghua-SIA/Open-MOPD-SmolLM3-3B-MixSFT",
            [f"BytedTsinghua-SIA/Open-MOPD-SmolLM3-3B-RL-{name}" for name in ("Math", "Code", "IF")],
        ),
        (
            "r1-distill-qwen-7b",
            "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
            ["nvidia/AceMath-RL-Nemotron-7B", "nvidia/AceReason-Nemotron-7B", "THU-KEG/R1-Distill-Qwen-7B-VerIF"],
        ),
    ],
)
def test_a_folder_of_recipes_shares_one_set_of_checkpoints_and_one_training_protocol(folder, student, teachers):
    protocol = load_recipe(SINGLECAP).training
    for path in SHIPPED:
        if path.parent.name == folder:
            recipe = load_recipe(path)
            assert recipe.student == student
            assert [teacher.model for teacher in recipe.teachers.values()] == teachers
            assert recipe.training == protocol


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("uniform", {"rule": "uniform"}),
        ("random", {"rule": "random"}),
        ("single-code", {"rule": "single", "teacher": "code"}),
        ("likelihood", {"score": "likelihood"}),
        ("negative-entropy", {"score": "negative_entropy"}),
        ("teacher-student-kl", {"score": "teacher_student_kl"}),
        ("without-mu", {"calibrated": False}),
        ("response-level", {"granularity": "response"}),
        ("gamma-3", {"gamma": 3.0}),
    ],
)
@pytest.mark.parametrize("data", ["singlecap", "multicap"])
def test_a_baseline_or_ablation_differs_from_trust_in_its_allocation_alone(data, name, changed):
    trust = load_recipe(SINGLECAP.with_name(f"{data}-trust.yaml"))
    other = load_recipe(SINGLECAP.with_name(f"{data}-{name}.yaml"))
    own = {"name", "output", "allocation"}
    assert other.model_dump(exclude=own) == trust.model_dump(exclude=own)
    expected = changed if "rule" in changed else trust.allocation.model_dump() | changed
    assert other.allocation.model_dump() == expected


def test_every_rule_of_the_field_has_a_recipe_and_a_line_in_the_page_about_rules():
    papers = {"trust", "uniform", "random", "single", "routed", "geometric_mean", "even"}
    page = (ROOT / "docs/rules.md").read_text(encoding="utf-8")
    known, shown = {rule for part in PARTS.values() for rule in part}, set()
    for path in (ROOT / "recipes/rules").glob("*.yaml"):
        recipe = load_recipe(path)
        assert recipe.output == Path(f"runs/smollm3-3b/{recipe.name}")
        shown |= {getattr(recipe, part).rule for part in PARTS}
    assert shown - papers == known - papers
    assert {rule for rule in known if f"`{rule}`" not in page} == set()


def test_transfer_recipes_change_the_prompts_alone():
    for data in ("singlecap", "multicap"):
        for rule in ("trust", "uniform"):
            default = load_recipe(SINGLECAP.with_name(f"{data}-{rule}.yaml"))
            transfer = load_recipe(SINGLECAP.with_name(f"transfer-data-{data}-{rule}.yaml"))
            assert default.prompts.path == f"./data/{data}" and transfer.prompts.path == f"./data/transfer-{data}"
            own = {"name", "output", "prompts"}
            assert transfer.model_dump(exclude=own) == default.model_dump(exclude=own)


def test_the_page_about_recipes_lists_each_shipped_one_and_its_example_loads(write):
    page = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
    listed = set()
    for table in page.split("| `recipes/")[1:]:
        folder = table.split("/`")[0]
        listed |= {f"{folder}/{name}" for name in re.findall(r"^\| `([a-z0-9-]+\.yaml)`", table, re.MULTILINE)}
    assert listed == {f"{path.parent.name}/{path.name}" for path in SHIPPED}
    example, _, child = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    write(example, "singlecap-trust.yaml")
    assert load_recipe(write(child)).allocation == load_recipe(SINGLECAP, ["allocation.gamma=9"]).allocation
    shown = load_recipe(write(example)).model_dump()
    written = yaml.safe_load(example)
    for section in ("prompts", "allocation", "evaluation"):
        assert written[section].keys() == shown[section].keys()
    assert written.keys() == shown.keys(), "the annotated recipe shows every field"


# One file


def test_a_recipe_needs_only_a_name_a_student_teachers_and_prompts(write):
    recipe = load_recipe(write(SMALL))
    assert recipe.config_fields() == {"allocation": TRUST, **REST, "domain_column": "domain"}
    assert recipe.reference is None and recipe.peft is None and recipe.calibration is None
    assert recipe.prompts.split == "train" and recipe.seeds == [0] and recipe.output == Path("runs/small")
    assert recipe.evaluation.benchmarks == [] and recipe.evaluation.max_new_tokens == 30000


def test_the_student_as_reference_is_the_student_whatever_folder_has_that_name(write):
    assert load_recipe(write(SMALL), ["reference=student"]).reference is None
    assert load_recipe(write(SMALL), ["reference=./student"]).reference == "./student"


def test_a_teacher_is_a_path_or_says_more_about_itself(write):
    recipe = load_recipe(write(SMALL), ["teachers.if={adapter: lora-if}"])
    assert recipe.teachers == {
        "math": TeacherSource(model="m"),
        "code": TeacherSource(model="c", revision="v1", dtype="bfloat16"),
        "if": TeacherSource(adapter="lora-if"),
    }


def test_null_drops_a_teacher_in_an_override_and_in_a_file_that_extends(write):
    base = write(SMALL, "base.yaml")
    assert list(load_recipe(base, ["teachers.math=null"]).teachers) == ["code"]
    child = write("extends: base.yaml\nname: child\nteachers: {math: null, if: i}")
    recipe = load_recipe(child)
    assert list(recipe.teachers) == ["code", "if"] and load_recipe(write(recipe.to_yaml(), "whole.yaml")) == recipe
    assert list(load_recipe(child, ["teachers.math=again"]).teachers) == ["math", "code", "if"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["teachers.math=null", "teachers.code=null"], ["teachers", "all"]),
        (["teachers.maths=null"], ["teachers.maths", "math, code"]),
        (["teachers.math="], ["teachers.math=", "null"]),
        (["allocation={rule: single, teacher: math}", "teachers.math=null"], ["allocation.teacher", "'math'", "drops"]),
    ],
)
def test_what_cannot_be_dropped_is_told(write, overrides, words):
    message = fails(write(SMALL), overrides)
    assert all(word in message for word in words), message


def test_one_seed_runs_in_the_output_folder_and_several_beneath_it(write):
    path = write(SMALL + "output: out\n")
    assert load_recipe(path, ["seeds=[3]"]).run_directory(3) == Path("out")
    assert load_recipe(path, ["seeds=[3, 5]"]).run_directory(5) == Path("out/seed-5")
    with pytest.raises(RecipeError, match=r"4.*seeds = \[3, 5\]"):
        load_recipe(path, ["seeds=[3, 5]"]).run_directory(4)


@pytest.mark.parametrize("number", ["1e-6", "1.0e-6", "1E-6", "0.000001", "+1e-6", "100e-8", ".1e-5"])
def test_a_number_in_scientific_notation_is_a_number_in_files_and_overrides(write, number):
    assert load_recipe(write(SMALL + f"training: {{learning_rate: {number}}}")).training["learning_rate"] == 1e-6
    assert load_recipe(write(SMALL), [f"training.learning_rate={number}"]).training["learning_rate"] == 1e-6


def test_text_that_looks_like_a_number_stays_text_in_quotes_and_a_commit_hash_does_without(write):
    overrides = ['teachers.math.revision="1e5"', "teachers.code.revision=12e4567"]
    recipe = load_recipe(write(SMALL), overrides)
    assert recipe.teachers["math"].revision == "1e5" and recipe.teachers["code"].revision == "12e4567"
    assert load_recipe(write(recipe.to_yaml())) == recipe


def test_training_and_peft_arguments_pass_through_as_written(write):
    recipe = load_recipe(write(SMALL + "training: {bf16: true, model_init_kwargs: {dtype: float32}}\npeft: {r: 8}"))
    assert recipe.config_fields()["model_init_kwargs"] == {"dtype": "float32"}
    assert recipe.config_fields()["bf16"] is True and recipe.peft == {"r": 8}


def test_config_fields_hold_what_the_rule_uses_and_nothing_else(write):
    path = write(SMALL + "calibration: runs/old/calibration.json")
    assert load_recipe(path).config_fields()["calibration_path"] == "runs/old/calibration.json"
    assert "calibration_path" not in load_recipe(path, ["allocation={rule: trust, calibrated: false}"]).config_fields()
    single = load_recipe(path, ["allocation={rule: single, teacher: code}", "prompts.domain_column=null"])
    assert single.config_fields() == {
        **REST,
        "allocation": {"rule": "single", "teacher": "code"},
        "domain_column": None,
    }
    for rule in ("uniform", "random", "routed"):
        fields = load_recipe(path, [f"allocation.rule={rule}", "prompts.domain_column=topic"]).config_fields()
        assert fields == {**REST, "allocation": {"rule": rule}, "domain_column": "topic"}


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["peft={r: 8}", "calibration=c.json", "seeds=[1, 2]", "reference=r"],
        ["allocation={rule: single, teacher: math}", "prompts.domain_column=null", "name='1e-6'", "student=Zoë"],
        ["training={a: null, b: '1e3', c: [1e-7, .inf], d: 'no', e: '2026-01-01'}"],
    ],
)
def test_a_resolved_recipe_reads_back_as_the_same_recipe(write, overrides):
    recipe = load_recipe(write(SMALL), overrides)
    assert load_recipe(write(recipe.to_yaml(), "resolved.yaml")) == recipe


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_shipped_recipe_survives_being_resolved(write, path):
    recipe = load_recipe(path)
    assert load_recipe(write(recipe.to_yaml())) == recipe
    assert "extends" not in yaml.safe_load(recipe.to_yaml())


def test_a_recipe_cannot_change_after_it_was_read(write):
    with pytest.raises(ValueError, match="frozen"):
        load_recipe(write(SMALL)).name = "other"


# Extending and overriding


def test_a_child_wins_field_by_field_along_a_chain(write):
    write(SMALL + "training: {max_steps: 1, learning_rate: 1e-5, top_p: 0.9}\nseeds: [0, 1]", "a.yaml")
    write("extends: a.yaml\ntraining: {max_steps: 2, learning_rate: 1e-6}", "b.yaml")
    recipe = load_recipe(write("extends: b.yaml\nname: c\ntraining: {max_steps: 3}\nseeds: [7]", "c.yaml"))
    assert recipe.training == {"max_steps": 3, "learning_rate": 1e-6, "top_p": 0.9}
    assert recipe.name == "c" and recipe.seeds == [7] and recipe.student == "base"


def test_another_checkpoint_of_a_teacher_keeps_its_place_alone(write):
    math = "{model: a, revision: v1, reference: b, on: ray, gpus: 2, replicas: 3}"
    path = write(SMALL.replace("math: m", f"math: {math}"))
    math = load_recipe(path, ["teachers.math.model=c"]).teachers["math"]
    assert (math.model, math.revision, math.reference) == ("c", None, None)
    assert (math.on, math.gpus, math.replicas) == ("ray", 2, 3)


def test_an_empty_mapping_replaces_a_full_one_in_files_and_overrides(write):
    write(SMALL + "training: {max_steps: 1, kwargs: {a: 1}}", "a.yaml")
    assert load_recipe(write("extends: a.yaml\ntraining: {kwargs: {}}")).training == {"max_steps": 1, "kwargs": {}}
    assert load_recipe(write("extends: a.yaml"), ["training={}"]).training == {}


def test_an_override_that_empties_a_mapping_does_so_whatever_follows(write):
    path = write(SMALL + "training: {max_steps: 1, kwargs: {a: 1}}")
    assert load_recipe(path, ["training={}", "training.b=2"]).training == {"b": 2}
    assert load_recipe(path, ["training.kwargs={}", "training.kwargs.b=2"]).training == {
        "max_steps": 1,
        "kwargs": {"b": 2},
    }
    assert load_recipe(path, ["training.b=2", "training={}"]).training == {}


def test_extends_starts_from_its_own_file_and_other_paths_from_the_current_directory(write, tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    write(SMALL, "base.yaml")
    child = write("extends: ../base.yaml", "deep/child.yaml")
    monkeypatch.chdir("/")
    recipe = load_recipe(child)
    assert recipe.prompts.path == "prompts.jsonl" and recipe.output == Path("runs/small")


def test_the_same_rule_keeps_its_fields_and_another_rule_inherits_none(write):
    write(SMALL + "allocation: {rule: trust, gamma: 3.0, score: likelihood}", "base.yaml")
    same = load_recipe(write("extends: base.yaml\nallocation: {rule: trust, gamma: 5.0}"))
    assert same.allocation.model_dump() == Trust(gamma=5.0, score="likelihood").model_dump()
    other = load_recipe(write("extends: base.yaml\nallocation: {rule: single, teacher: math}"))
    assert other.allocation.model_dump() == {"rule": "single", "teacher": "math"}
    assert load_recipe(write("extends: base.yaml"), ["allocation.rule=uniform"]).allocation.rule == "uniform"


def test_a_teacher_of_other_weights_inherits_nothing_and_the_rest_of_the_pool_stays(write):
    write(SMALL, "base.yaml")
    for code in ("{model: new}", "new"):
        recipe = load_recipe(write(f"extends: base.yaml\nteachers: {{code: {code}, if: i}}"))
        assert recipe.teachers["code"] == TeacherSource(model="new")
        assert list(recipe.teachers) == ["math", "code", "if"] and recipe.teachers["math"].model == "m"
    adapted = load_recipe(write("extends: base.yaml\nteachers: {code: {adapter: lora}}"))
    assert adapted.teachers["code"] == TeacherSource(adapter="lora")


def test_a_revision_alone_keeps_the_teacher(write):
    recipe = load_recipe(write(SMALL), ["teachers.math.revision=v2", "teachers.code.revision=v2"])
    assert recipe.teachers["math"] == TeacherSource(model="m", revision="v2")
    assert recipe.teachers["code"] == TeacherSource(model="c", revision="v2", dtype="bfloat16")


def test_overrides_do_not_depend_on_their_order_unless_they_name_one_field(write):
    pair = ["allocation.teacher=code", "allocation.rule=single"]
    assert load_recipe(write(SMALL), pair) == load_recipe(write(SMALL), pair[::-1])
    pair = ["teachers.if.model=x", "teachers.if.adapter=y"]
    assert load_recipe(write(SMALL), pair).teachers["if"] == TeacherSource(model="x", adapter="y")
    assert load_recipe(write(SMALL), ["training.a=1", "training.a=2"]).training == {"a": 2}


def test_an_override_reads_its_value_as_yaml_and_reaches_any_depth(write):
    overrides = ["training.a.b.c=[1, x]", "training.d=a=b", "training.e=", "evaluation.benchmarks=[gsm8k]"]
    recipe = load_recipe(write(SMALL), overrides)
    assert recipe.training == {"a": {"b": {"c": [1, "x"]}}, "d": "a=b", "e": None}
    assert recipe.evaluation.benchmarks == ["gsm8k"]


def test_overriding_leaves_anchors_and_merge_keys_of_yaml_alone(write):
    text = "training: {x: &kw {a: 1, b: 2}, y: {<<: *kw, b: 3}}"
    recipe = load_recipe(write(SMALL + text), ["training.x.a=9"])
    assert recipe.training == {"x": {"a": 9, "b": 2}, "y": {"a": 1, "b": 3}}


# Slips


@pytest.mark.parametrize(
    ("override", "value", "names"),
    [
        ("name=7", "name = 7", "quotes"),
        ("student=", "student = None", ""),
        ("student=''", "student = ''", "empty Hub"),
        ("student.path=x", "student = {'path': 'x'}", ""),
        ("refrence=x", "refrence = 'x'", "`reference`"),
        ("extend=x", "extend = 'x'", "`extends`"),
        ("max_steps=3", "max_steps = 3", "name, student, training.max_steps"),
        ("teachers=[m]", "teachers = ['m']", "{math: path-or-id}"),
        ("teachers.math=3", "teachers.math = 3", "mapping"),
        ("teachers.math.model=", "teachers.math = {'model': None}", "`model` `adapter`"),
        ("teachers.math.revison=v1", "teachers.math.revison = 'v1'", "`revision`"),
        ("teachers.math.revision=1234567", "teachers.math.revision = 1234567", "quotes branch"),
        ("teachers.code.on=cloud", "teachers.code.on = 'cloud'", "resident ray"),
        ("teachers.code.replicas=0", "teachers.code.replicas = 0", "greater 1"),
        ("teachers.code.gpus=-1", "teachers.code.gpus = -1", "greater 0"),
        ("teachers.a b=x", "teachers.a b = 'a b'", "letters"),
        ("teachers.reference=x", "teachers.reference = 'reference'", "taken"),
        ("teachers.model=3", "teachers.model = 3", "mapping {math:"),
        ("teachers={yes: x}", "teachers.1 = True", "quotes"),
        ("prompts=data", "prompts = 'data'", "{path:"),
        ("prompts.splits=test", "prompts.splits = 'test'", "`split`"),
        ("allocation=uniform", "allocation = 'uniform'", "{rule:"),
        ("allocation.rule=trst", "allocation.rule = 'trst'", "trust, routed"),
        ("allocation={rule: trust, gamma: 0}", "allocation.gamma = 0", "greater 0 7"),
        ("allocation={rule: trust, gamma: -1}", "allocation.gamma = -1", "greater 0"),
        ("allocation={rule: trust, gamma: .inf}", "allocation.gamma = inf", "finite"),
        ("allocation={rule: trust, gamma: true}", "allocation.gamma = True", "number"),
        ("allocation={rule: trust, gama: 3}", "allocation.gama = 3", "`gamma`"),
        ("allocation={rule: trust, score: entropy}", "allocation.score = 'entropy'", "displacement negative_entropy"),
        ("allocation={rule: trust, granularity: word}", "allocation.granularity = 'word'", "token, response"),
        ("allocation={rule: trust, calibrated: 1}", "allocation.calibrated = 1", "bool true"),
        ("allocation={rule: uniform, gamma: 7}", "allocation.gamma = 7", "rule"),
        ("allocation.rule=single", "allocation.teacher", "missing"),
        ("allocation={rule: single, teacher: maths}", "allocation.teacher = 'maths'", "math, code"),
        ("rollouts={engine: vlm}", "rollouts.engine = 'vlm'", "mean vllm?"),
        ("rollouts.mode=server", "rollouts.engine is missing", "{engine: vllm}"),
        ("rollouts={engine: vllm, mod: server}", "rollouts.mod = 'server'", "`mode`"),
        ("rollouts={engine: vllm, mode: serve}", "rollouts.mode = 'serve'", "mean server?"),
        ("training=[]", "training = []", "TrustMOPDConfig"),
        ("training={1: 2}", "training.1 = 1", "text"),
        ("training.watch=[gsm8k]", "training.watch: ['gsm8k']", "mapping benchmarks"),
        ("training.watch={benchmarks: gsm8k}", "training.watch: benchmarks = 'gsm8k'", "list"),
        ("peft=lora", "peft = 'lora'", "LoraConfig"),
        ("calibration=3", "calibration = 3", "path calibration.json"),
        ("evaluation.benchmarks=[aime25, aime24]", "evaluation.benchmarks.1 = 'aime24'", "aime25, svamp .jsonl"),
        ("evaluation.benchmarks=[ifevl]", "evaluation.benchmarks.0 = 'ifevl'", "mean ifeval?"),
        ("evaluation.benchmarks=[ifeval, ifeval]", "evaluation.benchmarks = ['ifeval', 'ifeval']", "twice"),
        ("evaluation.benchmarks=aime25", "evaluation.benchmarks = 'aime25'", "list"),
        ("evaluation.samples=0", "evaluation.samples = 0", "greater 0"),
        ("evaluation.temperature=-0.1", "evaluation.temperature = -0.1", "greater 0"),
        ("evaluation.max_new_tokens=1.5", "evaluation.max_new_tokens = 1.5", "integer"),
        ("seeds=[]", "seeds = []", "empty [0, 1, 2]"),
        ("seeds=0", "seeds = 0", "list [0, 1, 2]"),
        ("seeds=[1, 1]", "seeds = [1, 1]", "twice"),
        ("seeds=[-1]", "seeds.0 = -1", "greater 0"),
        ("seeds=[true]", "seeds.0 = True", "integer"),
        ("output=[x]", "output = ['x']", "path folder"),
        ("output=", "output = None", "path"),
    ],
)
def test_a_wrong_value_is_answered_with_field_value_and_what_to_write(write, override, value, names):
    path = write(SMALL)
    message = fails(path, [override])
    assert message.startswith(f"{path}: {value}"), message
    assert [name for name in names.split() if name not in message] == [], message
    assert "pydantic" not in message and "Input" not in message and "\n" not in message


@pytest.mark.parametrize("field", OWNED_ELSEWHERE)
def test_training_refuses_what_the_recipe_says_elsewhere_and_names_the_place(write, field):
    message = fails(write(SMALL), [f"training.{field}=5"])
    assert f"training.{field} = 5" in message and f"`{OWNED_ELSEWHERE[field]}`" in message
    if field not in Recipe.model_fields:
        assert f"`{OWNED_ELSEWHERE[field]}`" in fails(write(SMALL), [f"{field}=5"])


def test_the_places_that_training_refers_to_are_fields_of_a_recipe():
    fields = {
        *Recipe.model_fields,
        *("target.rule", "emphasis.rule"),
        *(f"allocation.{field}" for rule in RULES.values() for field in rule.model_fields),
    }
    assert set(OWNED_ELSEWHERE.values()) <= fields | {"prompts.domain_column"}


def test_routing_without_a_label_column_is_refused(write):
    message = fails(write(SMALL), ["allocation.rule=routed", "prompts.domain_column=null"])
    assert "prompts.domain_column = None" in message


def test_missing_fields_are_all_named_at_once(write):
    path = write("teachers: {}\nprompts: {split: test}\nseeds: [-1]")
    lines = fails(path).splitlines()
    assert [line.removeprefix(f"{path}: ").split(" ")[0] for line in lines] == [
        *("name", "student", "teachers", "prompts.path", "seeds.0")
    ]


def test_a_long_value_is_cut_in_the_message(write):
    assert len(fails(write(SMALL), [f"prompts={'x' * 1000}"])) < 300


def test_a_key_that_is_no_text_is_refused(write):
    assert "7 = 7" in fails(write(SMALL + "7: x"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "empty"),
        ("# nothing yet\n", "empty"),
        ("- a\n- b\n", "['a', 'b']"),
        ("name: a\nstudent: [b\n", ", line 3, column 1:"),
        ("name: a\n\tstudent: b\n", ", line 2, column 1:"),
        ("name: a\ntraining:\n  x: 1\n  x: 2\n", ", line 4, column 3: not valid YAML: the key 'x'"),
        ("name: a\nteachers: {m:./m}\n", ", line 2, column 12: not valid YAML: no space follows the colon of 'm:./m'"),
        ("name: a\nstudent: b\nname: c\n", ", line 3, column 1: not valid YAML: the key 'name'"),
        ("name: !!python/object:os.system {}\n", ", line 1, column 7:"),
        ("name: 2026-02-30\n", "day is out of range"),
        ("name: a\x00b\n", "YAML"),
        ("extends: [a, b]\n", "extends = ['a', 'b']"),
    ],
)
def test_a_file_that_is_no_recipe_says_where_and_why(write, text, expected):
    path = write(text)
    assert str(path) in fails(path) and expected in fails(path)


def test_a_file_that_cannot_be_read_says_so(write, tmp_path):
    assert f"{tmp_path / 'none.yaml'} does not exist" in fails(tmp_path / "none.yaml")
    assert f"{tmp_path} is a folder" in fails(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert f"{binary} cannot be read" in fails(binary)
    empty = write("")
    assert fails(empty).count(str(empty)) == 1


def test_a_missing_or_broken_base_is_named_with_the_file_that_extends_it(write, tmp_path):
    child = write("extends: base.yaml")
    assert f"{child} extends {tmp_path / 'base.yaml'}: {tmp_path / 'base.yaml'} does not exist" in fails(child)
    write("", "base.yaml")
    assert f"{tmp_path / 'base.yaml'} is empty" in fails(child)


def test_recipes_in_a_circle_are_refused(write, tmp_path):
    write("extends: b.yaml", "a.yaml")
    write("extends: ./c.yaml", "b.yaml")
    message = fails(write("extends: a.yaml", "c.yaml"))
    assert message.count(" extends ") == 3
    assert fails(write("extends: recipe.yaml")).count("recipe.yaml") == 2


@pytest.mark.parametrize(
    "override", ["training.max_steps", "=3", "training..a=1", ".a=1", "training.=1", "extends=x.yaml"]
)
def test_an_override_that_is_no_field_and_value_is_refused(write, override):
    assert repr(override) in fails(write(SMALL), [override])


def test_an_override_that_is_no_yaml_is_named(write):
    assert "override 'seeds=[0', line 1, column 3:" in fails(write(SMALL), ["seeds=[0"])


def test_gamma_alone_speaks_of_the_trust_rule(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("{name: x, student: s, teachers: {math: m}, prompts: {path: p}}")
    assert load_recipe(path, ["allocation.gamma=3"]).allocation == Trust(gamma=3.0)


def test_a_path_may_begin_with_the_home_folder(write, monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    recipe = load_recipe(write(SMALL), ["output=~/runs/x", "student=~/base", "teachers.math=~/m", "prompts.path=~/p"])
    assert recipe.output == Path("/home/ada/runs/x")
    found = (recipe.student, recipe.teachers["math"].model, recipe.prompts.path)
    assert found == ("/home/ada/base", "/home/ada/m", "/home/ada/p")


def test_a_variable_in_a_file_is_not_taken_for_a_folder_s_name(write):
    assert "$SCRATCH" in fails(write(SMALL + "output: $SCRATCH/runs"))


def test_a_teachers_place_needs_no_quotes(tmp_path):
    """YAML 1.1 reads a bare `on` as true."""
    text = "name: x\nstudent: s\nprompts: {path: p}\nteachers:\n  math: {model: m, on: ray, gpus: 2, replicas: 3}\n"
    (tmp_path / "recipe.yaml").write_text(text)
    (teacher,) = load_recipe(tmp_path / "recipe.yaml").teachers.values()
    assert (teacher.on, teacher.gpus, teacher.replicas) == ("ray", 2, 3)
    again = load_recipe(tmp_path / "recipe.yaml", ["teachers.math.on=local", "teachers.math.gpus=null"])
    (tmp_path / "again.yaml").write_text(again.to_yaml())
    assert load_recipe(tmp_path / "again.yaml") == again and again.teachers["math"].on == "resident"
