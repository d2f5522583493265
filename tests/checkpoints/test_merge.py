import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from trustmopd.checkpoints import files as checkpoint_files
from trustmopd.checkpoints import merge
from trustmopd.checkpoints.merge import merge_checkpoints

pytestmark = pytest.mark.unit


def save_llama(folder: Path, seed: int, *, dtype=torch.float32, max_shard_size="50GB", **config) -> Path:
    torch.manual_seed(seed)
    shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**shape | heads | config)).to(dtype)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def save_tokenizer(folder: Path) -> None:
    vocabulary = {word: index for index, word in enumerate(["<unk>", "</s>", "one", "student", "many", "teachers"])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>")
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)


def edit_weights(folder: Path, change) -> None:
    """Rewrite the checkpoint's tensors as `change` leaves them."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


@pytest.fixture
def specialists(tmp_path: Path) -> list[Path]:
    folders = [save_llama(tmp_path / name, seed) for seed, name in enumerate(["math", "code", "if"])]
    save_tokenizer(folders[0])
    return folders


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_is_the_mean_of_the_checkpoints_parameters(tmp_path: Path, tied: bool, dtype: torch.dtype):
    folders = [save_llama(tmp_path / str(seed), seed, dtype=dtype, tie_word_embeddings=tied) for seed in range(3)]
    merged = tensors_of(merge_checkpoints(folders, tmp_path / "soup"))
    parts = [tensors_of(folder) for folder in folders]
    assert merged.keys() == parts[0].keys()
    assert ("lm_head.weight" in merged) is not tied
    for name, tensor in merged.items():
        exact = torch.stack([part[name].double() for part in parts]).mean(dim=0)
        assert tensor.dtype == dtype
        if dtype in (torch.float16, torch.bfloat16):
            # Sums of three such numbers fit float32, so the one rounding is the last.
            assert torch.equal(tensor, exact.to(dtype))
        else:
            torch.testing.assert_close(tensor.double(), exact, rtol=8 * torch.finfo(dtype).eps, atol=1e-8)


@pytest.mark.parametrize("factor", [1 / 3, 0.7, 2.0])
def test_task_arithmetic_adds_all_changes_to_the_base(specialists, tmp_path: Path, factor: float):
    base = save_llama(tmp_path / "base", 7)
    found = tensors_of(merge_checkpoints(specialists, tmp_path / "sum", base=base, factor=factor))
    parts, start = [tensors_of(folder) for folder in specialists], tensors_of(base)
    for name, tensor in found.items():
        changes = sum(part[name].double() - start[name].double() for part in parts)
        torch.testing.assert_close(tensor.double(), start[name].double() + factor * changes, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="base"):
        merge_checkpoints(specialists, tmp_path / "other", factor=factor)


def test_the_result_loads_as_a_model_with_the_first_checkpoints_tokenizer_and_template(specialists, tmp_path: Path):
    config = json.loads((specialists[0] / "generation_config.json").read_text())
    (specialists[0] / "generation_config.json").write_text(json.dumps(config | {"eos_token_id": [1, 7]}))
    soup = merge_checkpoints([str(folder) for folder in specialists], str(tmp_path / "runs" / "soup"))

    model = AutoModelForCausalLM.from_pretrained(soup)
    assert isinstance(model, LlamaForCausalLM)
    assert model.generation_config.eos_token_id == [1, 7]
    parts = [dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters()) for folder in specialists]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, sum(part[name] for part in parts) / 3)

    tokenizer = AutoTokenizer.from_pretrained(soup)
    assert tokenizer("many teachers one student").input_ids == [4, 5, 2, 3]
    assert tokenizer.eos_token == "</s>"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "one"}], tokenize=False) == "one"


def test_tied_checkpoints_load_with_head_and_embeddings_still_one_tensor(tmp_path: Path):
    folders = [save_llama(tmp_path / str(seed), seed, tie_word_embeddings=True) for seed in range(2)]
    model = AutoModelForCausalLM.from_pretrained(merge_checkpoints(folders, tmp_path / "soup"))
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_one_checkpoint_comes_back_unchanged(specialists, tmp_path: Path):
    merged = tensors_of(merge_checkpoints(specialists[:1], tmp_path / "soup"))
    assert all(torch.equal(tensor, merged[name]) for name, tensor in tensors_of(specialists[0]).items())


def test_how_the_checkpoints_are_cut_into_shards_does_not_matter(specialists, tmp_path: Path, monkeypatch):
    whole = merge_checkpoints(specialists, tmp_path / "whole")
    cut = [
        save_llama(tmp_path / f"cut-{seed}", seed, max_shard_size=size)
        for seed, size in enumerate(["50GB", "20KB", "9KB"])
    ]
    counts = [len(list(folder.glob("*.safetensors"))) for folder in cut]
    assert counts[0] == 1 and 1 < counts[1] < counts[2]

    monkeypatch.setattr(merge, "MAX_SHARD_BYTES", 15_000)
    soup = merge_checkpoints(cut, tmp_path / "soup")
    expected = tensors_of(whole)
    for tensors in (tensors_of(soup), AutoModelForCausalLM.from_pretrained(soup).state_dict()):
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)

    index = json.loads((soup / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in expected.values())
    shards = sorted(soup.glob("*.safetensors"))
    assert len(shards) > 2 and {shard.name for shard in shards} == set(index["weight_map"].values())


def test_a_trainers_checkpoint_leaves_its_optimizer_and_model_card_behind(specialists, tmp_path: Path):
    for name in ("optimizer.pt", "trainer_state.json", "training_args.bin", "README.md", "all_results.json"):
        (specialists[0] / name).write_text("of one specialist")
    names = {file.name for file in merge_checkpoints(specialists, tmp_path / "soup").iterdir()}
    card = (tmp_path / "soup" / "README.md").read_text()
    assert "of one specialist" not in card and all(f"`{each}`" in card for each in specialists)
    weights_and_config = {"model.safetensors", "config.json", "generation_config.json", "README.md"}
    assert names == weights_and_config | {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}


def test_equal_integer_tensors_are_kept(specialists, tmp_path: Path):
    for folder in specialists:
        edit_weights(folder, lambda tensors: tensors.update(steps=torch.tensor([3, 4])))
    assert tensors_of(merge_checkpoints(specialists, tmp_path / "soup"))["steps"].tolist() == [3, 4]


def test_checkpoints_of_several_float_dtypes_average_into_the_firsts(tmp_path: Path):
    folders = [
        save_llama(tmp_path / name, 0, dtype=dtype) for name, dtype in [("a", torch.bfloat16), ("b", torch.float32)]
    ]
    parts = [tensors_of(folder) for folder in folders]
    for name, tensor in tensors_of(merge_checkpoints(folders, tmp_path / "soup")).items():
        assert torch.equal(tensor, ((parts[0][name].float() + parts[1][name]) / 2).bfloat16())


def test_a_hub_id_with_a_revision_is_fetched_without_what_is_not_needed(specialists, tmp_path: Path, monkeypatch):
    asked = []

    def download(repository, *, revision, allow_patterns):
        asked.append((repository, revision))
        assert "config.json" in allow_patterns and not any("bin" in pattern for pattern in allow_patterns)
        return str(specialists[0])

    monkeypatch.setattr(checkpoint_files, "snapshot_download", download)
    merge_checkpoints(["lab/base@v2", "lab/base", specialists[1]], tmp_path / "soup")
    assert asked == [("lab/base", "v2"), ("lab/base", None)]


MEASURE = """
import sys, torch
from pathlib import Path
from trustmopd.checkpoints.merge import merge_checkpoints

def kilobytes(field):
    return int(next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(field)).split()[1])

*checkpoints, warm_up, output = sys.argv[1:]
merge_checkpoints([warm_up], output + "-warm-up")  # so that libraries loaded on the way are not counted
before = kilobytes("VmRSS")
merge_checkpoints(checkpoints, output)
print((kilobytes("VmHWM") - before) * 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from /proc")
def test_memory_does_not_grow_with_the_number_of_checkpoints(specialists, tmp_path: Path):
    size = 40_000_000
    folders = []
    for seed in range(5):
        folders.append(tmp_path / f"large-{seed}")
        folders[-1].mkdir()
        (folders[-1] / "config.json").write_text("{}")
        layers = {f"layer.{index}": torch.full((size // 40,), float(seed)) for index in range(10)}
        save_file(layers, folders[-1] / "model.safetensors", metadata={"format": "pt"})
    command = [sys.executable, "-c", MEASURE, *folders, specialists[0], tmp_path / "soup"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert set(tensors_of(tmp_path / "soup")["layer.9"].tolist()) == {2.0}
    # One for the output shard, and a tenth or two for the tensor at hand; with all five files open it is above 6.
    assert int(result.stdout) < 2.5 * size


def remove(name: str):
    return lambda folder: (folder / name).unlink()


def cut_short(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def only_bin(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def adapter(folder: Path) -> None:
    remove("config.json")(folder)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")


def lost_shard(folder: Path) -> None:
    index = {"weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}
    remove("model.safetensors")(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def torn_index(folder: Path) -> None:
    remove("model.safetensors")(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"lm_')


def weights(change):
    return lambda folder: edit_weights(folder, change)


def put_nan(tensors) -> None:
    tensors["model.norm.weight"][3] = float("nan")


NORM = "model.norm.weight"
BROKEN = {
    "no directory": (lambda folder: folder.rename(folder.with_name("moved")), "code.*save_pretrained"),
    "no config": (remove("config.json"), "code.*config.json"),
    "only .bin": (only_bin, r"code.*model.safetensors.*\.bin.*save_pretrained"),
    "no LoRA adapter": (adapter, "code.*None"),
    "cut short": (cut_short, r"code.model.safetensors \(\d+ bytes\)"),
    "lost shard": (lost_shard, "code.*model-00001-of-00001.safetensors"),
    "torn index": (torn_index, "code.model.safetensors.index.json"),
    "tensor missing": (weights(lambda tensors: tensors.pop(NORM)), f"math.*{NORM}.*code"),
    "tensor added": (weights(lambda tensors: tensors.update(bias=torch.ones(2))), "code.*bias.*math"),
    "other shape": (
        weights(lambda tensors: tensors.update({NORM: torch.ones(33)})),
        rf"{NORM}.*\[32\].*math.*\[33\].*code",
    ),
    "other kind": (
        weights(lambda tensors: tensors.update({NORM: torch.ones(32, dtype=torch.int64)})),
        f"{NORM}.*F32.*math.*I64.*code",
    ),
    "quantised": (
        weights(lambda tensors: tensors.update({NORM: torch.ones(32).to(torch.float8_e4m3fn)})),
        f"code.*{NORM}.*F8_E4M3",
    ),
    "nan": (weights(put_nan), f"{NORM}.*NaN.*code"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_is_named_and_nothing_is_left_behind(case: str, specialists, tmp_path: Path):
    spoil, message = BROKEN[case]
    spoil(specialists[1])
    before = sorted(tmp_path.iterdir())
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        merge_checkpoints(specialists, tmp_path / "soup")
    assert sorted(tmp_path.iterdir()) == before


def test_integer_tensors_that_differ_are_refused(specialists, tmp_path: Path):
    for step, folder in enumerate(specialists):
        edit_weights(folder, lambda tensors, step=step: tensors.update(steps=torch.tensor([step])))
    with pytest.raises(ValueError, match=r"steps.*torch.int64.*math.*code"):
        merge_checkpoints(specialists, tmp_path / "soup")
    assert not list(tmp_path.glob("*soup*")) and not list(tmp_path.glob(".*"))


def test_a_mean_too_large_for_the_first_dtype_is_refused(specialists, tmp_path: Path):
    edit_weights(specialists[0], lambda tensors: tensors.update({NORM: torch.ones(32, dtype=torch.float16)}))
    edit_weights(specialists[1], lambda tensors: tensors.update({NORM: torch.full((32,), 1e6)}))
    with pytest.raises(ValueError, match=f"{NORM}.*torch.float16"):
        merge_checkpoints(specialists, tmp_path / "soup")


@pytest.mark.parametrize("checkpoints", [[], "lab/model"])
def test_what_is_no_list_of_checkpoints_is_refused(checkpoints, tmp_path: Path):
    with pytest.raises(ValueError, match=f"checkpoints = {re.escape(repr(checkpoints))}"):
        merge_checkpoints(checkpoints, tmp_path / "soup")


@pytest.mark.parametrize("name", ["lab/no-such-model-here", "runs/math/checkpoint-116"])
def test_a_name_that_is_neither_directory_nor_model_says_so(name: str, tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=name):
        merge_checkpoints([name], tmp_path / "soup")


def test_a_full_output_directory_is_kept_unless_overwriting_is_asked_for(specialists, tmp_path: Path):
    soup = tmp_path / "soup"
    soup.mkdir()
    (soup / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="soup.*overwrite"):
        merge_checkpoints(specialists, soup)
    assert (soup / "notes.txt").read_text() == "mine"
    merge_checkpoints(specialists, soup, overwrite=True)
    assert not (soup / "notes.txt").exists() and (soup / "model.safetensors").exists()


def test_an_error_while_overwriting_keeps_the_old_checkpoint(specialists, tmp_path: Path):
    soup = merge_checkpoints(specialists[:1], tmp_path / "soup")
    edit_weights(specialists[1], put_nan)
    with pytest.raises(ValueError, match="NaN"):
        merge_checkpoints(specialists, soup, overwrite=True)
    assert AutoModelForCausalLM.from_pretrained(soup).config.hidden_size == 32


def test_an_empty_output_directory_is_used(specialists, tmp_path: Path):
    (tmp_path / "soup").mkdir()
    assert (merge_checkpoints(specialists, tmp_path / "soup") / "model.safetensors").is_file()


@pytest.mark.parametrize("inside", [".", "math"])
def test_overwriting_never_deletes_a_checkpoint_being_averaged(inside: str, specialists, tmp_path: Path):
    with pytest.raises(FileExistsError, match="math"):
        merge_checkpoints(specialists, tmp_path / inside, overwrite=True)
    assert all((folder / "model.safetensors").is_file() for folder in specialists)


def test_an_output_that_is_a_file_is_refused(specialists, tmp_path: Path):
    (tmp_path / "soup").write_text("soup")
    with pytest.raises(FileExistsError, match="soup"):
        merge_checkpoints(specialists, tmp_path / "soup", overwrite=True)
