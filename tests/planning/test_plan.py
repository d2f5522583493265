"""`trustmopd plan` as a person and as a script use it."""

import json
import shlex
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import tiny
import torch
import yaml
from accelerate.commands.launch import launch_command_parser
from planned import measured_steps, work
from planned import rates as benchmark
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner, Result

from trustmopd.cli import app
from trustmopd.planning import Option, Setup, Workload, fastest, plan, workload_of
from trustmopd.planning.memory import frozen_weights, moments
from trustmopd.planning.plan import gpus_of
from trustmopd.planning.seconds import learning_bytes, rates, rollout_bytes, sampling_seconds, seconds_per_step
from trustmopd.planning.workload import DTYPES, ENGINES, PLACEMENTS
from trustmopd.quickstart.shipped import SHIPPED
from trustmopd.recipe import load_recipe
from trustmopd.training.prepare import config_of, prepare

ROOT = Path(__file__).parents[2]
PARTS = ["weights", "gradients", "optimizer", "activations", "answers", "rollout_engine", "total"]
FIELDS = [
    "placement",
    "engine",
    "student_dtype",
    "fits",
    "gib",
    "seconds_per_step",
    "gpu_hours",
    "set",
    "usable",
    "launch",
]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small world's own checkpoints. The prompts need not be there."""
    path = tmp_path_factory.mktemp("plan") / "recipe.yaml"
    fields = {
        "name": "planned",
        "student": str(SHIPPED / "reference"),
        "teachers": {name: str(SHIPPED / name) for name in ("math", "code", "if")},
        "prompts": {"path": "not-here.jsonl"},
        "training": {"max_prompt_length": 64, "max_completion_length": 128},
    }
    path.write_text(yaml.safe_dump(fields))
    return path


def work_of(path: Path, *overrides: str) -> Workload:
    loaded = load_recipe(path, overrides)
    prepared = prepare(loaded)
    return workload_of(prepared.graph, loaded.student, prepared.args, prepared.lora)


def rows_of(path: Path, *overrides: str, gpus: int = 8, memory: float = 80) -> list[Option]:
    return plan(load_recipe(path, overrides), work_of(path, *overrides), gpus=gpus, memory=memory)


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, words)])


def planned(*words: object, code: int = 0) -> list[dict]:
    result = invoke(*words, "--json")
    assert result.exit_code == code, result.output
    told = json.loads(result.stdout)
    assert set(told) == {"schema_version", "rows"}
    return told["rows"]


def test_json_has_a_row_for_every_way_to_run(recipe: Path) -> None:
    rows = planned(recipe, "--gpus", 8, "--memory", 80)
    ways = [(row["placement"], row["engine"], row["student_dtype"]) for row in rows]
    assert ways == list(product(PLACEMENTS, ENGINES, DTYPES))
    for row in rows:
        assert {*row} == {*FIELDS, *(["extra_gpus"] if row["placement"] == "ray" else [])}
        assert list(row["gib"]) == PARTS
        assert row["fits"] is True and row["seconds_per_step"] > 0 and row["gpu_hours"] > 0
        assert sum(row["gib"][part] for part in PARTS[:-1]) == pytest.approx(row["gib"]["total"], abs=0.01)


def test_what_a_row_sets_is_a_recipe_with_that_row(recipe: Path) -> None:
    for row in planned(recipe, "--gpus", 4):
        changed = load_recipe(recipe, [f"{name}={json.dumps(value)}" for name, value in row["set"].items()])
        assert changed.training["model_init_kwargs"]["dtype"] == row["student_dtype"]
        assert (changed.peft is not None) == (row["placement"] == "adapters")
        assert bool(changed.training.get("fsdp")) == (row["engine"] == "FSDP2")
        assert ("deepspeed" in changed.training) == (row["engine"] == "ZeRO-3")
        if row["placement"] in ("resident", "offload") and row["engine"] != "ZeRO-3":
            args = config_of(changed, 0)
            assert args.teacher_placement == row["placement"]
            if row["engine"] == "FSDP2":
                assert args.accelerator_config.gradient_accumulation_kwargs == {"sync_each_batch": True}


def test_nothing_fits_is_status_1(recipe: Path) -> None:
    rows = planned(recipe, "--memory", 0.001, code=1)
    assert not any(row["fits"] for row in rows)
    assert invoke(recipe, "--memory", 0.001).exit_code == 1


def test_the_fastest_that_fits_is_told_as_fields(recipe: Path) -> None:
    result = invoke(recipe, "--gpus", 8, "--memory", 80)
    assert result.exit_code == 0
    assert "Set: training.teacher_placement=resident" in result.stdout and "--dry-run" in result.stdout
    assert "accelerate launch --config_file recipes/accelerate/ddp.yaml --num_processes 8" in result.stdout


def test_every_row_says_how_it_is_launched(recipe: Path) -> None:
    """As accelerate's own parser reads it; the launcher's file asks for the engine, the fields for the rest."""
    for row in planned(recipe, "seeds=[3]", "--gpus", 4, "--nodes", 2):
        assert row["launch"].startswith("accelerate launch ")
        given = launch_command_parser().parse_args(shlex.split(row["launch"].replace("RANK", "1"))[2:])
        assert (given.num_processes, given.num_machines, given.machine_rank, given.module) == (8, 2, 1, True)
        config = yaml.safe_load((ROOT / given.config_file).read_text())
        kinds = {"DDP": "MULTI_GPU", "FSDP2": "FSDP", "ZeRO-3": "DEEPSPEED"}
        assert config["distributed_type"] == kinds[row["engine"]]
        assert config.get("deepspeed_config", {}).get("zero_stage", 3) == 3
        name, verb, path, *overrides = [given.training_script, *given.training_script_args]
        assert (name, verb, path) == ("trustmopd", "train", str(recipe))
        changed = load_recipe(path, overrides)
        assert changed.seeds == [3] and changed.training["model_init_kwargs"]["dtype"] == row["student_dtype"]
        assert not {"fsdp", "deepspeed"} & changed.training.keys()
    alone = planned(recipe, "--gpus", 1)
    assert alone[0]["launch"].startswith(f"trustmopd train {recipe}")


def test_the_fastest_is_one_that_can_be_run(recipe: Path) -> None:
    rows = rows_of(recipe)
    best = fastest(rows)
    assert best is not None and best.fits and best.setup.placement != "adapters", "its teachers are not adapters"
    least = min(row.seconds_per_step for row in rows if row.fits and row.at_hand)
    assert best.seconds_per_step <= least * 1.05
    assert best.setup.student_dtype == "float32", "no slower, and small updates are kept"
    assert (best.setup.placement, best.setup.engine) == ("resident", "DDP"), "the simplest of those that tie"
    for row in rows_of(recipe, gpus=1):
        alone = row.setup.placement not in ("sharded", "ray") and row.setup.engine != "FSDP2"
        assert row.at_hand == (alone and row.setup.placement != "adapters"), "one GPU has nobody to share with"


def test_rows_that_train_refuses_are_not_recommended(recipe: Path) -> None:
    rows = rows_of(recipe, "training.use_vllm=true")
    assert {row.setup.engine for row in rows if row.at_hand} == {"DDP", "FSDP2"}


def test_a_slower_row_is_not_the_fastest_however_simple(recipe: Path) -> None:
    rows = rows_of(recipe)
    slow = [
        replace(row, seconds_per_step=row.seconds_per_step * (1.2 if row.setup.engine == "DDP" else 1)) for row in rows
    ]
    best = fastest(slow)
    assert best is not None and (best.setup.placement, best.setup.engine) == ("resident", "FSDP2")
    unfit = [replace(row, fits=row.fits and row.setup.placement != "resident") for row in rows]
    best = fastest(unfit)
    assert best is not None and (best.setup.placement, best.host_gib) == ("sharded", 0), "nothing is pinned"


def test_a_micro_batch_that_does_not_fit_is_made_smaller(recipe: Path) -> None:
    long = "training.max_completion_length=4096"
    roomy = rows_of(recipe, long)[0]
    assert "training.per_device_train_batch_size" not in roomy.set, "the recipe's own"
    tight = rows_of(recipe, long, memory=roomy.gib.total)[0]
    assert tight.fits and tight.set["training.per_device_train_batch_size"] < 4


def test_a_token_budget_is_planned_as_the_rows_that_it_holds(recipe: Path) -> None:
    by_tokens = planned(recipe, "training.max_tokens_per_micro_batch=400", "--memory", 80)  # 2 × (64 + 128) tokens fit
    by_rows = planned(recipe, "training.per_device_train_batch_size=2", "--memory", 80)
    assert [row["gib"] for row in by_tokens] == [row["gib"] for row in by_rows]
    assert all("training.per_device_train_batch_size" not in row["set"] for row in by_tokens)


def test_teachers_that_are_adapters_share_the_base(tmp_path: Path) -> None:
    base = tiny.model(0)
    student = tiny.save(base, tmp_path / "student")
    adapters = {name: {"adapter": str(tiny.adapter(base, tmp_path / name, seed))} for seed, name in enumerate("ab")}
    path = tmp_path / "recipe.yaml"
    fields = {"name": "adapted", "student": student, "teachers": adapters, "prompts": {"path": "none.jsonl"}}
    training = {"max_prompt_length": 64, "max_completion_length": 128}
    path.write_text(yaml.safe_dump({**fields, "training": training, "peft": {"r": 4, "target_modules": ["q_proj"]}}))
    loaded = load_recipe(path)
    work = work_of(path)
    assert work.lora == 2 * 4 * (32 + 32), "two layers, rank 4, 32 × 32"
    assert ([model.adapters for model in work.frozen], work.policies) == ([(work.lora, work.lora)], 3)
    lent = {engine: [m.lent for m in work.models(Setup("resident", engine, "float32"))] for engine in ("DDP", "FSDP2")}
    assert lent == {"DDP": [True], "FSDP2": [False]}, "sharding takes the student's apart"
    rows = plan(loaded, work, gpus=2, memory=80)
    assert all(row.at_hand for row in rows if row.setup.placement != "ray")
    assert {row.extra_gpus for row in rows if row.setup.placement == "ray"} == {1}, "one base for all"


def test_one_teacher_of_many_and_no_reference(recipe: Path) -> None:
    work = work_of(recipe, "allocation={rule: single, teacher: code}")
    assert ([model.teachers for model in work.frozen], work.policies) == ([("code",)], 1)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--gpus", "0"], "--gpus 0"),
        (["--memory", "-1"], "--memory -1"),
        (["--nodes", "0"], "--nodes 0"),
        (["--gpus", "7"], "global_batch_size = 64"),
        (["student=no-such/model"], "config.json"),
        (["teachers.code=no-such/model"], "teacher 'code'"),
        (["peft={rank: 4}"], "peft.rank"),
        (["training.max_stepz=4"], "max_steps"),
    ],
)
def test_slips_are_told_with_the_value_and_what_to_do(recipe: Path, words: list[str], named: str) -> None:
    result = invoke(recipe, *words)
    assert result.exit_code == 1 and result.stderr.startswith("error: ") and named in result.stderr


def test_rates_are_those_of_the_results() -> None:
    assert rates() == benchmark.rates(), "run python benchmarks/rates.py"


def test_seconds_of_the_measured_shape_are_the_measured_ones() -> None:
    for row in measured_steps():
        given = work(row["shape"], trust=row["allocation"] == "trust")
        setup = Setup(row["placement"], "DDP", "bfloat16")
        without = seconds_per_step(given, setup) - sampling_seconds(given, setup)
        assert without == pytest.approx(float(row["step_seconds"]), rel=0.05), row["placement"]


def test_bytes_between_gpus() -> None:
    given = work("smollm3-3b")
    size = given.student.parameters
    assert learning_bytes(given, Setup("resident", "DDP", "float32")) == 0
    assert learning_bytes(given, Setup("resident", "DDP", "float32", gpus=2)) == pytest.approx(size * 4)
    passes = 64 / 2 / 4
    fsdp2 = Setup("resident", "FSDP2", "float32", gpus=2)
    assert learning_bytes(given, fsdp2) == pytest.approx(passes * 4 * size * 2 / 2)
    sharded = Setup("sharded", "FSDP2", "float32", gpus=2)
    frozen = 4 * (size - given.student.head) * 2
    assert learning_bytes(given, sharded) - learning_bytes(given, fsdp2) == pytest.approx(passes * frozen / 2)
    assert rollout_bytes(given, fsdp2) == pytest.approx(1024 * size * 2 / 2), "the student, anew for every token"


def test_a_teachers_own_reference_is_one_more_model_and_a_smaller_budget_is_set(recipe: Path, tmp_path: Path) -> None:
    other = tiny.save(tiny.model(5, hidden=48, layers=3), tmp_path / "other")
    works = [work_of(recipe), work_of(recipe, f"teachers.math.reference={other}")]
    references = [[model.is_student for model in work.frozen if not model.teachers] for work in works]
    assert references == [[True], [True, False]]
    assert works[1].policies == works[0].policies + 1
    # 64 rows a pass, of which a small GPU holds fewer: the row that fits says so.
    length = works[0].prompt + works[0].response
    budget = f"training.max_tokens_per_micro_batch={64 * length}"
    roomy = rows_of(recipe, budget, gpus=1, memory=1000)[0]
    assert "training.max_tokens_per_micro_batch" not in roomy.set
    tight = rows_of(recipe, budget, gpus=1, memory=roomy.gib.total * 0.7)[0]
    assert tight.fits and tight.set["training.max_tokens_per_micro_batch"] < 64 * length


def test_a_teacher_of_another_size_is_read_in_the_time_of_its_own(recipe: Path, tmp_path: Path) -> None:
    small = tiny.save(tiny.model(5, layers=1), tmp_path / "small")

    def seconds(*overrides: str) -> float:
        return seconds_per_step(work_of(recipe, *overrides), Setup("resident", "ddp", "float32"))

    _plain, without = load_recipe(recipe), seconds("teachers.math=null")
    usual = work_of(recipe).student.parameters
    own = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_pretrained(small).parameters())
    assert own < usual / 2
    share = (seconds(f"teachers.math={small}") - without) / (seconds() - without)
    assert share == pytest.approx(own / usual, rel=1e-6)  # both so small that they have one rate


def test_ray_takes_the_frozen_models_off_the_training_gpus_and_counts_their_own(recipe: Path) -> None:
    rows = {row["placement"]: row for row in planned(recipe, "--gpus", 8, "--memory", 80) if row["engine"] == "DDP"}
    ray, resident = rows["ray"], rows["resident"]
    assert ray["extra_gpus"] == 4  # three teachers and the reference
    assert ray["gib"]["answers"] == 0 and ray["gib"]["weights"] < resident["gib"]["weights"] / 3
    assert ray["set"]["training.teacher_placement"] == "ray"
    assert ray["gpu_hours"] / ray["seconds_per_step"] > resident["gpu_hours"] / resident["seconds_per_step"]


def test_a_teacher_larger_than_a_gpu_gets_several() -> None:
    given, small_gpus = work("smollm3-3b"), Setup("ray", "DDP", "bfloat16", gpus=8, memory=8)
    large = replace(given.models(small_gpus)[0], dtype=torch.float32)
    assert large.head + large.body == large.shape.parameters * 4 > 8 * 2**30
    assert gpus_of(large, given, small_gpus, 0.92 * 8 * 2**30) > 1
    assert gpus_of(large, given, small_gpus, 0.92 * 80 * 2**30) == 1


def test_vllm_spreads_over_a_power_of_two_and_fp8_halves_the_layers() -> None:
    given, gpus = work("smollm3-3b"), Setup("ray", "DDP", "bfloat16", gpus=8, memory=8)
    model = replace(given.models(gpus)[0], engine="vllm")
    rounded = replace(model, quantization="fp8")
    layers = model.shape.parameters - model.shape.root
    assert model.bytes - rounded.bytes == layers and replace(rounded, on="resident").body == 2 * layers + (
        2 * model.shape.embedding
    )
    on_vllm, in_fp8 = (gpus_of(each, given, gpus, 0.92 * 2.5 * 2**30) for each in (model, rounded))
    assert on_vllm > in_fp8 > 1 and {on_vllm, in_fp8} <= {2, 4, 8, 16}


def test_a_recipe_with_vllm_is_planned_with_it_on_ray_alone(recipe: Path) -> None:
    on_vllm = ("training.teacher_placement=ray", "training.teacher_engine=vllm")
    rows = {row["placement"]: row for row in planned(recipe, *on_vllm, "--gpus", 8, "--memory", 80)}
    assert rows["ray"]["extra_gpus"] == 4 and "training.teacher_engine" not in rows["ray"]["set"]
    assert rows["resident"]["set"]["training.teacher_engine"] == "transformers"


def test_an_adapter_on_a_reference_of_its_own_is_no_model_of_its_own(recipe: Path, tmp_path: Path) -> None:
    """As the run loads it: the reference once, and the adapter on it; for a rule without scores, too."""
    base = tiny.model(5, hidden=48, layers=3)
    other, adapter = tiny.save(base, tmp_path / "other"), tiny.adapter(base, tmp_path / "adapter", 1)
    own = [f"teachers.math={{model: {other}, adapter: {adapter}, reference: {other}}}"]
    for rules, policies, frozen in (([], 5, 4), (["allocation={rule: uniform}"], 3, 3)):
        work = work_of(recipe, *own, *rules)
        assert (work.full_teachers, len(work.frozen[-1].adapters), work.policies) == (["code", "if"], 1, policies)
        assert len(work.frozen) == frozen
    merged = work_of(recipe, f"teachers.math={{model: {other}, adapter: {adapter}}}")
    assert set(merged.full_teachers) == {"math", "code", "if"}, "merged into its base"


def test_answers_beyond_their_share_of_the_gpu_go_to_the_host(recipe: Path) -> None:
    roomy, tight, none = (rows_of(recipe, f"training.answers_on_device_gib={gib}", gpus=2)[0] for gib in (4, 0.001, 0))
    assert roomy.gib.answers > 0.001 and roomy.host_gib == 0
    assert tight.gib.answers == pytest.approx(0.001) and none.gib.answers == 0
    assert none.host_gib == pytest.approx(2 * roomy.gib.answers), "of both GPUs"


def test_a_folder_without_a_configuration_is_not_said_to_be_elsewhere(recipe: Path, tmp_path: Path) -> None:
    result = invoke(recipe, f"student={tmp_path}")
    said = " ".join(result.output.split())
    assert result.exit_code == 1 and str(tmp_path) in said and "config.json" in said
    assert "not on this machine" not in said


SMALL, LARGE = (str(ROOT / "recipes/planning" / name) for name in ("qwen2-7b", "qwen2-32b"))


def two_sizes(folder: Path, **teacher: str) -> Path:
    """A student of 7B with a teacher of its size and two of 32B."""
    large = {"model": LARGE, **teacher}
    twin = {**large, "adapter": "other"} if "adapter" in large else large
    fields = {
        "name": "sizes",
        "student": SMALL,
        "teachers": {"math": SMALL, "code": large, "if": twin},
        "prompts": {"path": "none.jsonl"},
        "training": {"max_prompt_length": 1024, "max_completion_length": 2048},
    }
    (path := folder / "recipe.yaml").write_text(yaml.safe_dump(fields))
    return path


def test_what_models_of_another_size_leave_and_read_with_is_of_their_own_width(tmp_path: Path) -> None:
    path = two_sizes(tmp_path, reference="student")
    rows = {row["placement"]: row for row in planned(path, "--gpus", 8) if row["engine"] == "DDP"}
    tokens, widths = 64 // 8 * 2048, 2 * 3584 + 2 * 5120  # math and the student as reference; code and if
    assert rows["resident"]["gib"]["answers"] == pytest.approx(2 * tokens * widths / 2**30, abs=6e-4)
    assert rows["adapters"]["gib"]["answers"] == pytest.approx(2 * tokens * 4 * 3584 / 2**30, abs=6e-4)
    ask = moments(work_of(path), Setup("resident", "DDP", "float32", gpus=8))["ask"]
    read = 4 * (1024 + 2048) * (4 * 5120 + 3 * 27648)  # four rows a pass, by the widest model
    assert ask.activations == pytest.approx(2 * read / 2**30)


def test_adapters_on_a_reference_of_another_size_are_counted_by_that_size(tmp_path: Path) -> None:
    path = two_sizes(tmp_path, adapter="one", reference=LARGE)
    works = [work_of(path), work_of(path, "teachers.if=null")]
    large = works[0].frozen[-1]
    assert (len(large.adapters), large.bare, large.shape.hidden) == (2, True, 5120)
    # rank 16 on q, k, v, o (40 and 8 heads of 128) and on gate, up, down
    sides = 2 * (5120 + 5120) + 2 * (5120 + 1024) + 3 * (5120 + 27648)
    assert large.adapters == (64 * 16 * sides,) * 2
    setup = Setup("resident", "DDP", "float32", gpus=8)
    one, other = (seconds_per_step(work, setup) for work in works)
    rate = rates()["pass"]["adapters"][-1][1]  # of the largest size that was measured
    assert one - other == pytest.approx(64 / 8 * (1024 + 2048) * large.shape.parameters * rate)
    kept, less = (frozen_weights(work, setup)[0] for work in works)
    assert kept - less == 4 * large.adapters[0]
    assert [model.policies for model in works[0].frozen] == [1, 1, 3]  # math, the student, the 32B base


def test_the_ways_worth_choosing_come_first_in_eighty_columns_and_all_if_asked(recipe: Path) -> None:
    usable = {row["usable"] for row in planned(recipe, "--gpus", 8)}
    few, every = (invoke(recipe, "--gpus", 8, *option).stdout.splitlines() for option in ((), ("--all",)))
    rows = [line for line in few if line.startswith("│")]
    assert usable == {True, False} and len(rows) == 6 and max(map(len, rows)) <= 80
    assert all(" yes " in row for row in rows) and len([line for line in every if line.startswith("│")]) > 20


def test_only_a_recipe_with_vllm_is_told_what_vllm_excludes(recipe: Path) -> None:
    def excluded(*words: str | int) -> str:
        return str(invoke(recipe, *words, "--all").stdout).partition("* This")[2].partition("Fastest")[0]

    assert "vLLM" not in excluded("--gpus", 1)
    assert "vLLM" in excluded("--gpus", 8, "rollouts.engine=vllm")


@pytest.mark.parametrize(("gpus", "nodes", "code"), [(1, 1, 1), (3, 1, 1), (2, 1, 0), (1, 2, 0)])
def test_engines_are_joined_only_where_there_are_gpus_for_them(recipe: Path, gpus: int, nodes: int, code: int) -> None:
    """A batch that every number of GPUs divides."""
    joined = ["training.use_vllm=true", "training.vllm_tensor_parallel_size=2", "training.global_batch_size=60"]
    result = invoke(recipe, *joined, "--gpus", gpus, "--nodes", nodes)
    assert result.exit_code == code, result.output
    assert ("vllm_tensor_parallel_size = 2" in result.stderr) == bool(code)
    served = invoke(recipe, *joined, "training.vllm_mode=server", "--gpus", gpus, "--nodes", nodes)
    assert served.exit_code == 0, "a server is joined by its own command"


SERVED = ("training.use_vllm=true", "training.vllm_mode=server")


def test_a_servers_gpus_are_counted_beside_those_that_train() -> None:
    machine = [ROOT / "recipes/planning/7b.yaml", "--gpus", 4, "--memory", 1000]
    four = [*machine, *SERVED, "--server-gpus", 4]
    few, many, colocated = planned(*machine, *SERVED), planned(*four), planned(*machine, "training.use_vllm=true")
    assert {row["server_gpus"] for row in few} == {1} and {row["server_gpus"] for row in many} == {4}
    assert all("server_gpus" not in row for row in colocated)
    for less, more, own in zip(few, many, colocated, strict=True):
        assert less["seconds_per_step"] > more["seconds_per_step"], "the server alone samples"
        assert more["seconds_per_step"] == own["seconds_per_step"], "as many GPUs sample"
        if "extra_gpus" not in more:
            assert more["gpu_hours"] == pytest.approx(2 * own["gpu_hours"], abs=0.011), "of eight GPUs, not of four"
        assert more["gib"]["rollout_engine"] == 0 and more["launch"].count("--num_processes 4") == 1
    title, _, said = invoke(*four).stdout.partition("┏")
    assert "4 GPUs for the vLLM server" in " ".join(title.split()) and "vLLM server has 4 GPUs" in said


def test_a_server_that_cannot_be_is_refused(recipe: Path) -> None:
    without = invoke(recipe, "--server-gpus", 2)
    assert without.exit_code == 1 and "rollouts.mode" in without.stderr
    large = ROOT / "recipes/planning/32b.yaml"
    assert planned(large, *SERVED, "--gpus", 32)[0]["server_gpus"] == 1  # 61 GiB of weights
    assert planned(large, *SERVED, "--gpus", 32, "--memory", 40, code=1)[0]["server_gpus"] == 2
    small = invoke(large, *SERVED, "--gpus", 32, "--memory", 40, "--server-gpus", 1)
    assert small.exit_code == 1 and "--server-gpus 1" in small.stderr and "at least 2" in small.stderr
