"""The planner's memory against parameter counts of real models, against peaks measured on one H200, and against
itself: what must not grow when GPUs are added."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import tiny
from peft import LoraConfig
from planned import measured_steps, results, work

from trustmopd.planning.memory import GIB, frozen_weights, gradients, moments, peak, student_weights
from trustmopd.planning.shapes import lora_parameters, shape_of
from trustmopd.planning.workload import DDP, DTYPES, ENGINES, LORA, PLACEMENTS, ZERO2, ZERO3, Setup

pytestmark = pytest.mark.unit

STEPS = [pytest.param(row, id=f"{row['shape']}-{row['placement']}-{row['allocation']}") for row in measured_steps()]


@pytest.mark.parametrize("row", STEPS)
def test_steps_with_given_rollouts_peak_where_they_were_measured(row: dict[str, str]) -> None:
    given = work(row["shape"], trust=row["allocation"] == "trust", response=int(row["tokens"]))
    found = moments(given, Setup(row["placement"], "DDP", "bfloat16"))
    predicted = max(found["ask"].total, found["train"].total)
    assert predicted == pytest.approx(float(row["peak_gib"]), rel=0.1)


PEAKS = [
    pytest.param(row, id="-".join(row[name] for name in ("shape", "placement", "allocation", "student_dtype")))
    for row in results("peak.csv")
]


@pytest.mark.parametrize("row", PEAKS)
def test_whole_steps_peak_where_they_were_measured(row: dict[str, str]) -> None:
    sizes = {"response": int(row["tokens"]), "batch": int(row["responses"]), "micro_batch": int(row["micro_batch"])}
    found = moments(
        work(row["shape"], trust=row["allocation"] == "trust", **sizes),
        Setup(row["placement"], "DDP", row["student_dtype"]),
    )
    counted = [moment for name, moment in found.items() if name != "rollout" or row["rollouts"] == "sampled"]
    assert max(moment.total for moment in counted) == pytest.approx(float(row["peak_gib"]), rel=0.1)


SAMPLED = [
    pytest.param(row, id=f"{row['shape']}-{row['engine']}-{row['prompt']}-{row['tokens']}")
    for row in results("rollouts.csv")
    if row["engine"] in ("default", "static-compiled")
]


@pytest.mark.parametrize("row", SAMPLED)
def test_sampling_peaks_where_it_was_measured(row: dict[str, str]) -> None:
    prompt, static = int(row["prompt"]) + 24, row["engine"] != "default"  # its last call has longer prompts
    room = int(row["room"] or prompt + int(row["tokens"]))
    response = room - prompt if static else int(row["tokens"])
    given = work(row["shape"], batch=int(row["batch"]), prompt=prompt, response=response, static_cache=static)
    found = moments(given, Setup("resident", "DDP", "bfloat16"))["rollout"]
    predicted = given.student.parameters * 2 / GIB + found.activations + found.rollout_engine
    assert predicted == pytest.approx(float(row["peak_gib"]), rel=0.1)


@pytest.mark.parametrize("tied", [True, False])
def test_a_shape_is_that_of_the_model_itself(tied: bool, tmp_path: Path) -> None:
    model = tiny.model(0, tied=tied)
    shape = shape_of("the student", tiny.save(model, tmp_path / "model"))
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    layers = sum(p.numel() for p in model.model.layers.parameters())
    assert shape.layer * shape.layers == layers + model.model.norm.weight.numel()
    assert (shape.embedding == 0) == tied and shape.head == tiny.VOCAB * 32
    assert (shape.layers, shape.hidden, shape.intermediate, shape.key_value) == (2, 32, 64, 2 * 2 * 8)


def test_bytes_a_parameter_are_those_of_adamw(tmp_path: Path) -> None:
    """16 bytes of every parameter in float32, 8 in bfloat16; DDP's buckets and a LoRA student beside."""
    source = tiny.save(tiny.model(0), tmp_path / "model")
    shape = shape_of("the student", source)
    given = work("tiny", lora=lora_parameters(LoraConfig(**LORA, task_type="CAUSAL_LM"), source))
    given = replace(given, student=shape)

    def bytes_each(placement: str, dtype: str, gpus: int = 1) -> float:
        setup = Setup(placement, "DDP", dtype, gpus=gpus)
        optimizer = moments(given, setup)["train"].optimizer * GIB
        return (student_weights(given, setup) + gradients(given, setup) + optimizer) / shape.parameters

    assert bytes_each("resident", "float32") == pytest.approx(16)
    assert bytes_each("resident", "bfloat16") == pytest.approx(8)
    assert bytes_each("resident", "float32", gpus=2) == pytest.approx(20), "gradients travel in buckets"
    adapter = 16 * given.lora / shape.parameters
    assert bytes_each("adapters", "bfloat16") == pytest.approx(2 + adapter)


def test_what_placements_keep_of_the_frozen_models() -> None:
    given = work("smollm2-135m", lora=0)
    shape, all_four = given.student, 4 * given.student.parameters * 2
    kept, reading = frozen_weights(given, Setup("resident", "DDP", "float32"))
    assert kept == reading == all_four
    kept, reading = frozen_weights(given, Setup("offload", "DDP", "float32"))
    assert kept == 4 * shape.head * 2 and reading - kept == 2 * (shape.parameters - shape.head) * 2
    kept, _ = frozen_weights(given, Setup("sharded", "DDP", "float32", gpus=8))
    assert kept == 4 * (shape.head + (shape.parameters - shape.head) / 8) * 2
    assert frozen_weights(given, Setup("adapters", "DDP", "float32")) == (0, 0)
    assert frozen_weights(given, Setup("adapters", "FSDP2", "float32"))[0] == shape.parameters * 2, "a base of its own"


WAYS = list(product(PLACEMENTS, ENGINES, DTYPES))


@pytest.mark.parametrize(("placement", "engine", "dtype"), WAYS)
def test_more_gpus_never_need_more_memory_each(placement: str, engine: str, dtype: str) -> None:
    given = work("smollm3-3b")
    first = 2 if engine == "DDP" else 1  # DDP's buckets come with the second GPU
    totals = [peak(given, Setup(placement, engine, dtype, gpus=first * 2**n)).total for n in range(5)]
    assert totals == sorted(totals, reverse=True)
    nodes = peak(given, Setup(placement, engine, dtype, gpus=8, nodes=2)).total
    assert nodes == pytest.approx(peak(given, Setup(placement, engine, dtype, gpus=16)).total)


@pytest.mark.parametrize(("placement", "engine", "dtype"), WAYS)
@pytest.mark.parametrize("larger", [{"response": 2048}, {"micro_batch": 8}, {"prompt": 4096}, {"candidates": 512}])
def test_more_work_never_needs_less_memory(placement: str, engine: str, dtype: str, larger: dict[str, int]) -> None:
    given = work("smollm2-135m")
    setup = Setup(placement, engine, dtype)
    assert peak(replace(given, **larger), setup).total >= peak(given, setup).total


def test_gradients_are_whole_under_fsdp2_unless_every_micro_batch_is_reduced() -> None:
    given = work("smollm3-3b")
    reduced = Setup("resident", "FSDP2", "float32", gpus=8)
    extra = gradients(given, replace(reduced, sync_each_batch=False)) - gradients(given, reduced)
    assert extra > given.student.parameters, "most of two bytes a parameter"


def test_vllm_takes_its_share_or_what_it_cannot_do_without() -> None:
    given = work("smollm3-3b", vllm_share=0.3, uses_vllm=True)
    roomy = moments(given, Setup("resident", "DDP", "bfloat16", memory=80))
    assert roomy["train"].rollout_engine == pytest.approx(24)
    tight = moments(given, Setup("resident", "DDP", "bfloat16", memory=10))["train"].rollout_engine
    assert tight > given.student.parameters * 2 / GIB
    asleep = moments(replace(given, vllm_sleeps=True), Setup("resident", "DDP", "bfloat16", memory=80))
    assert asleep["train"].rollout_engine == 0 and asleep["rollout"].rollout_engine == pytest.approx(24)


def test_zero_2_keeps_the_weights_whole_and_spreads_the_rest() -> None:
    given = work("smollm3-3b")
    found = {engine: Setup("resident", engine, "float32", gpus=8) for engine in (DDP, ZERO2, ZERO3)}
    weights = {engine: student_weights(given, setup) for engine, setup in found.items()}
    assert weights[ZERO2] == 2 * given.student.parameters and weights[ZERO3] < weights[ZERO2] < weights[DDP]
    assert gradients(given, found[ZERO2]) == gradients(given, found[ZERO3]) < gradients(given, found[DDP])
    assert peak(given, found[ZERO2]).optimizer == pytest.approx(12 * given.student.parameters / 8 / GIB)
