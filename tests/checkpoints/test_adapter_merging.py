"""Adapters as full weights: alone, and averaged with other checkpoints; the oracle is PEFT's own merge in memory."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import small_runs
import tiny
import torch
from command import run
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from trustmopd import Teacher
from trustmopd.checkpoints.merge import merge_adapter, merge_checkpoints
from trustmopd.evaluation.entries import entries_of, make_average
from trustmopd.recipe import load_recipe
from trustmopd.runs.layout import AVERAGE

TARGETS = ["q_proj", "v_proj", "down_proj"]


def save_adapter(base: torch.nn.Module, folder: Path, config=None, seed: int = 1, **settings) -> Path:
    """A trained-looking adapter over a copy of `base`: everything that it would train is moved."""
    torch.manual_seed(seed)
    settings = {"r": 4, "target_modules": TARGETS, "task_type": "CAUSAL_LM", **settings}
    adapted = get_peft_model(copy.deepcopy(base), config or LoraConfig(**settings))
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
    adapted.save_pretrained(folder)
    return folder


def merged_by_peft(base: str | Path, adapter: Path, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    return PeftModel.from_pretrained(model, adapter).to(dtype).merge_and_unload().state_dict()


def assert_is(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    found = load_file(folder / "model.safetensors")
    assert found.keys() <= expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor.to(expected[name].dtype), expected[name], atol=1e-6, rtol=1e-6)
    AutoModelForCausalLM.from_pretrained(folder)


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    shape = {"vocab_size": tiny.VOCAB, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=1, eos_token_id=2))


KINDS = {
    "plain": {},
    "rank-stabilised": {"use_rslora": True},
    "weight-decomposed": {"use_dora": True},
    "patterns": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 32}, "layers_to_transform": [1]},
    "every linear layer": {"target_modules": "all-linear"},
    "modules trained whole": {"target_modules": ["q_proj"], "modules_to_save": ["norm", "mlp"]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_becomes_the_weights_that_peft_would_merge(tmp_path: Path, kind: str) -> None:
    base = tiny.save(model := tiny.model(0), tmp_path / "base")
    adapter = save_adapter(model, tmp_path / "adapter", **KINDS[kind])
    expected = merged_by_peft(base, adapter)
    assert any(not torch.equal(expected[name], tensor.double()) for name, tensor in model.state_dict().items())
    assert_is(merge_adapter(adapter, tmp_path / "full", base), expected)


def test_embeddings_and_head_are_merged_where_they_are_two(tmp_path: Path) -> None:
    base = tiny.save(model := tiny.model(0, tied=False), tmp_path / "base")
    adapter = save_adapter(model, tmp_path / "adapter", target_modules=["embed_tokens", "lm_head", "q_proj"])
    assert_is(merge_adapter(adapter, tmp_path / "full", base), merged_by_peft(base, adapter))


def test_layers_that_store_their_weights_transposed_are_merged(tmp_path: Path) -> None:
    base = tiny.save(model := gpt2(), tmp_path / "base")
    adapter = save_adapter(model, tmp_path / "adapter", target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
    assert_is(merge_adapter(adapter, tmp_path / "full", base), merged_by_peft(base, adapter))


def test_a_base_in_half_precision_is_rounded_once(tmp_path: Path) -> None:
    base = tiny.save(tiny.model(0).bfloat16(), tmp_path / "base")
    adapter = save_adapter(tiny.model(0), tmp_path / "adapter")
    expected = merged_by_peft(base, adapter, torch.float32)
    for name, tensor in load_file(merge_adapter(adapter, tmp_path / "full", base) / "model.safetensors").items():
        assert torch.equal(tensor, expected[name].bfloat16())


def test_the_mean_takes_adapters_on_their_own_model_on_the_given_base_or_on_the_one_they_name(tmp_path: Path) -> None:
    model, other = tiny.model(0), tiny.model(7)
    base, own = tiny.save(model, tmp_path / "base"), tiny.save(other, tmp_path / "own")
    full = tiny.save(tiny.specialist(model, 3), tmp_path / "full")
    here, there = save_adapter(model, tmp_path / "here"), save_adapter(other, tmp_path / "there", seed=2)
    teachers = [Teacher(model=full), Teacher(adapter=here), Teacher(model=own, adapter=there)]
    parts = [
        {name: tensor.double() for name, tensor in load_file(Path(full) / "model.safetensors").items()},
        merged_by_peft(base, here),
        merged_by_peft(own, there),
    ]
    mean = {name: sum(part[name] for part in parts) / 3 for name in parts[0]}
    assert_is(merge_checkpoints(teachers, tmp_path / "given", base=base), mean)
    config = here / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": base}))
    assert_is(merge_checkpoints([full, here, teachers[2]], tmp_path / "named"), mean)


def test_tokenizer_and_template_are_the_adapters_where_it_has_them(tmp_path: Path) -> None:
    base = tiny.save(model := tiny.model(0), tmp_path / "base", tiny.tokenizer("{{ messages[0]['content'] }}"))
    (tmp_path / "base" / "vocab.json").write_text("{}")  # of the other tokenizer: the two must not mix
    adapter = save_adapter(model, tmp_path / "adapter")
    bare = merge_adapter(adapter, tmp_path / "bare", base)
    assert AutoTokenizer.from_pretrained(bare).chat_template == "{{ messages[0]['content'] }}"
    tiny.tokenizer().save_pretrained(adapter)
    dressed = merge_adapter(adapter, tmp_path / "dressed", base)
    assert AutoTokenizer.from_pretrained(dressed).chat_template == tiny.TEMPLATE
    assert not (dressed / "vocab.json").exists() and not (dressed / "adapter_config.json").exists()
    assert (dressed / "generation_config.json").is_file()


# From the command line


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA student, trained for two steps by two adapters and a full checkpoint."""
    folder = tmp_path_factory.mktemp("lora")
    base = tiny.model(0)
    student, full = tiny.save(base, folder / "student"), tiny.save(tiny.specialist(base, 3), folder / "if")
    adapters = {name: tiny.adapter(base, folder / name, seed) for seed, name in enumerate(("math", "code"), start=1)}
    teachers = {**{name: {"adapter": str(path)} for name, path in adapters.items()}, "if": full}
    peft = {"r": 4, "target_modules": TARGETS}
    small_runs.recipe(folder, {"base": student}, {"max_steps": 2, "learning_rate": 1e-2}, teachers=teachers, peft=peft)
    run("train", folder / "recipe.yaml")
    return folder


def test_a_lora_student_becomes_full_weights_that_say_the_same(study: Path, tmp_path: Path) -> None:
    checkpoint = study / "run" / "checkpoints" / "checkpoint-2"
    said = run("merge", checkpoint, "--out", tmp_path / "full")
    assert str(tmp_path / "full") in said
    student = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(study / "student"), checkpoint)
    full = AutoModelForCausalLM.from_pretrained(tmp_path / "full")
    ids = torch.arange(4, 60).view(1, -1)
    torch.testing.assert_close(full(ids).logits, student(ids).logits, atol=1e-4, rtol=1e-4)
    before = AutoModelForCausalLM.from_pretrained(study / "student")
    assert (full(ids).logits - before(ids).logits).abs().max() > 1e-2, "training moved it"
    assert AutoTokenizer.from_pretrained(tmp_path / "full").chat_template == tiny.TEMPLATE


def test_merge_averages_the_teachers_of_a_recipe_adapters_too(study: Path, tmp_path: Path) -> None:
    run("merge", study / "recipe.yaml", "--out", tmp_path / "mean")
    parts = [merged_by_peft(study / "student", study / name) for name in ("math", "code")]
    parts += [AutoModelForCausalLM.from_pretrained(study / "if", dtype=torch.float64).state_dict()]
    mean = {name: sum(part[name] for part in parts) / 3 for name in parts[0]}
    assert_is(tmp_path / "mean", mean)
    evaluated = load_recipe(study / "recipe.yaml", [f"output={tmp_path / 'evaluated'}"])
    make_average(evaluated)
    (average,) = [method for method in entries_of(evaluated)[0] if method.name == AVERAGE]
    assert_is(Path(str(average.source.model)), mean)


def test_what_is_there_is_replaced_only_with_overwrite_and_only_a_checkpoint_is(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "mean"
    run("merge", study / "recipe.yaml", "--out", out, "teachers.if=null")
    first = (out / "model.safetensors").read_bytes()
    assert "--overwrite" in run("merge", study / "recipe.yaml", "--out", out, code=1)
    assert (out / "model.safetensors").read_bytes() == first
    run("merge", study / "recipe.yaml", "--out", out, "--overwrite")
    assert (out / "model.safetensors").read_bytes() != first and list(tmp_path.iterdir()) == [out]
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    run("merge", study / "recipe.yaml", "--out", tmp_path / "notes", "--overwrite", code=1)
    assert (tmp_path / "notes" / "mine.txt").read_text() == "mine"


def test_a_dry_run_writes_nothing(study: Path, tmp_path: Path) -> None:
    for what in (study / "recipe.yaml", study / "math"):
        assert str(what if what.is_dir() else study / "if") in run("merge", what, "--out", tmp_path / "x", "--dry-run")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["math"], ["--out"]),
        (["math", "--out", "x", "training.max_steps=3"], ["training.max_steps=3", "recipe"]),
        (["recipe.yaml", "--base", "student"], ["--base"]),
        (["student", "--out", "x"], ["student", "full weights already"]),
        (["run", "--out", "x"], ["adapter_config.json", "checkpoint-"]),
        (["nowhere", "--out", "x"], ["nowhere"]),
        (["math", "--out", "x", "--base", "nowhere"], ["math", "nowhere", "--base"]),
        (["math", "--out", "x", "--base", "deep"], ["math", "deep", "trained on"]),
        (["math", "--out", "x", "--base", "wide"], ["math", "wide", "trained on"]),
        (["math", "--out", "math"], ["math"]),
    ],
)
def test_a_slip_is_one_message(study: Path, monkeypatch: pytest.MonkeyPatch, arguments: list, words: list) -> None:
    monkeypatch.chdir(study)
    for name, other in {"deep": tiny.model(0, layers=1), "wide": tiny.model(0, hidden=64)}.items():
        tiny.save(other, Path(name))
    said = run("merge", *arguments, code=1)
    assert [word for word in words if word not in said] == [] and "Traceback" not in said
    assert not Path("x").exists() and not list(Path().glob(".*partial"))


UNMERGEABLE = {
    "tied embeddings": {"target_modules": ["embed_tokens", "q_proj"]},
    "tied head, trained whole": {"modules_to_save": ["lm_head"]},
    "an initialisation that changes the base": {"init_lora_weights": "pissa"},
    "biases": {"bias": "all"},
    "another kind": {"config": IA3Config(target_modules=TARGETS, feedforward_modules=["down_proj"])},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", UNMERGEABLE)
def test_an_adapter_that_would_be_merged_wrongly_is_refused(tmp_path: Path, kind: str) -> None:
    base = tiny.save(model := tiny.model(0), tmp_path / "base")
    adapter = save_adapter(model, tmp_path / "adapter", **UNMERGEABLE[kind])
    with pytest.raises(ValueError, match=str(adapter)):
        merge_adapter(adapter, tmp_path / "full", base)
    assert not (tmp_path / "full").exists()


MEASURE = """
import sys
from pathlib import Path
from trustmopd.checkpoints import merge

def kilobytes(field):
    return int(next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(field)).split()[1])

merge.MAX_SHARD_BYTES = 10 * 10**6
small, adapter, base, output = sys.argv[1:]
merge.merge_adapter(adapter, output + "-warm-up", small)  # so that libraries loaded on the way are not counted
before = kilobytes("VmRSS")
merge.merge_adapter(adapter.replace("small", "large"), output, base)
print((kilobytes("VmHWM") - before) * 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from /proc")
def test_memory_holds_a_shard_and_a_tensor_and_never_the_model(tmp_path: Path) -> None:
    bases = {}
    for name, hidden in (("small", 32), ("large", 640)):
        model = tiny.model(0, hidden=hidden, layers=10)
        bases[name] = tiny.save(model, tmp_path / name)
        save_adapter(model, tmp_path / f"adapter-{name}")
    size = (tmp_path / "large" / "model.safetensors").stat().st_size
    assert size > 100e6
    command = [sys.executable, "-c", MEASURE, bases["small"], tmp_path / "adapter-small", bases["large"]]
    result = subprocess.run([*command, tmp_path / "full"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert int(result.stdout) < 0.6 * size
